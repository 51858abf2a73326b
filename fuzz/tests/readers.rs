//! The bodies of the targets on their seeds and on a few edits of each: for Miri, which sees what a reader of bytes
//! must not do. `cargo xtask fuzz --miri` runs it.

use std::time::Instant;

use gradwire_tests::cases::Random;
use gradwire_tests::hostile::{TARGETS, devices, seeds};

/// Every `step`th seed of a target, and as many edits of it.
fn run(name: &str, step: usize, edits: u32) {
    let (_, body) = TARGETS.into_iter().find(|(other, _)| *other == name).expect("a target");
    let (devices, mut random, begun) = (devices(), Random(7), Instant::now());
    let mut runs = 0;
    for seed in seeds::of(name).into_iter().step_by(step) {
        let _ = body(&devices, &seed);
        for _ in 0..edits {
            let mut edited = seed.clone();
            let at = random.bits() as usize % edited.len().max(1);
            if let Some(byte) = edited.get_mut(at) {
                *byte ^= 1 << (random.bits() % 8);
            }
            let _ = body(&devices, &edited);
        }
        runs += 1;
    }
    println!("{name}: {runs} seeds, {:?}", begun.elapsed());
}

#[test]
fn wire() {
    run("wire", 20, 2);
}

#[test]
fn sparse() {
    run("sparse", 20, 2);
}

#[test]
fn low_rank() {
    run("low_rank", 20, 2);
}
