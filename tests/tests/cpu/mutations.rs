//! A million spoiled payloads: none makes a reader or a decoder panic, disagree with `docs/wire.md`, or hold more
//! memory than what was received justifies.
//!
//! The bound, in bytes held at a time by the calling thread and the pool's:
//!
//! * refused bytes: 0;
//! * an accepted payload of `p` bytes and `n` elements: `p` to keep a copy (`from_bytes`), 0 to keep the bytes
//!   (`from_vec`);
//! * its decode: `4 n` for the output where the call makes it, and 2048 ([`hostile::OVERHEAD`]); a sum 64 more for each
//!   payload ([`hostile::PER_PAYLOAD`]); a session `p + 512 + 4 n` and 2048;
//! * and `n <= 8 p`, so that all of it is at most `33 p` and a constant: what was received bounds what it costs. (In
//!   base 3 `n <= 61 p`.)
//!
//! `GRADWIRE_MUTATIONS` sets another number of payloads: more for a long run, or fewer under a tool that is slow. From
//! 100000 on, every mutation and every refusal is sure to be met, which the test demands.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use gradwire::{Device, Gradient, Payload, PayloadError};
use gradwire_tests::cases::{self, Random};
use gradwire_tests::hostile::mutate::MUTATIONS;
use gradwire_tests::hostile::reader::{self, Fields};
use gradwire_tests::hostile::{self, OVERHEAD};
use gradwire_tests::meter::{self, Group};
use half::{bf16, f16};

/// Runs a test on a pool of its own, whose threads are measured together: a decode cannot hide what it holds on one of
/// them, and other tests of this process do not run there.
fn on_metered_threads(test: impl FnOnce() + Send) {
    let group = Group::fresh();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).start_handler(move |_| group.enlist()).build();
    let pool = pool.expect("two threads");
    // A thread allocates a record of 2304 bytes when it first looks for a job. After a job on each thread all have theirs,
    // so that none is allocated during a measurement.
    pool.broadcast(|_| ());
    pool.install(test);
}

/// Small payloads of every setting, around the boundaries of a row, a unit and a bucket, from each type.
fn payloads() -> Vec<Vec<u8>> {
    let device = Device::cpu();
    let mut payloads = Vec::new();
    for (k, case) in cases::settings().iter().enumerate() {
        for n in [0, 1, 33, 256, 300, 513] {
            let (_, fill) = cases::FILLS[(k + n) % cases::FILLS.len()];
            let values = fill(n);
            let half: Vec<f16> = values.iter().map(|v| f16::from_f32(*v)).collect();
            let brain: Vec<bf16> = values.iter().map(|v| bf16::from_f32(*v)).collect();
            let gradient: Gradient<'_> = match k % 3 {
                0 => (&values).into(),
                1 => (&half).into(),
                _ => (&brain).into(),
            };
            let payload = device.encode(&case.codec(), gradient, cases::seed()).expect("a valid setting");
            payloads.push(payload.into_bytes());
        }
    }
    payloads
}

fn count() -> u64 {
    let Ok(text) = std::env::var("GRADWIRE_MUTATIONS") else { return 1_000_000 };
    text.parse().unwrap_or_else(|e| panic!("GRADWIRE_MUTATIONS is `{text}`, and a number is needed: {e}"))
}

/// What became of the payloads.
#[derive(Default)]
struct Tally {
    accepted: BTreeMap<&'static str, u64>,
    refused: BTreeMap<&'static str, u64>,
}

fn name(error: &PayloadError) -> &'static str {
    match error {
        PayloadError::Truncated { .. } => "truncated",
        PayloadError::Trailing { .. } => "trailing",
        PayloadError::Magic { .. } => "magic",
        PayloadError::Version { .. } => "version",
        PayloadError::Field { field, .. } => field,
        PayloadError::Kind { .. } => "codec",
        _ => "checksum",
    }
}

#[test]
fn a_million_spoiled_payloads_do_no_harm() {
    on_metered_threads(|| {
        let (payloads, devices) = (payloads(), hostile::devices());
        let (mut random, mut tally) = (Random(2026), Tally::default());
        let mut bytes = Vec::new();
        for index in 0..count() {
            let mut any = || random.bits() as usize % payloads.len();
            let (base, other) = (&payloads[any()], &payloads[any()]);
            let (mutation, mutate) = MUTATIONS[index as usize % MUTATIONS.len()];
            bytes.clone_from(base);
            mutate(&mut bytes, other, &mut random);
            let sealed = random.bits() % 2 == 0;
            if sealed {
                reader::seal(&mut bytes);
            }
            let device = &devices[random.bits() as usize % devices.len()];
            // A panic ends the test, so nothing that it left half done is looked at.
            let checked = catch_unwind(AssertUnwindSafe(|| {
                let accepted = hostile::receive(&bytes)?;
                hostile::decodes(device, &accepted, 0.75);
                // Beside its original: of one kind they are summed, and else refused.
                hostile::sums(device, &[&hostile::receive(base)?, &accepted], -0.5);
                Ok(())
            }));
            match checked {
                Ok(Ok(())) => *tally.accepted.entry(mutation).or_default() += 1,
                Ok(Err(error)) => *tally.refused.entry(name(&error)).or_default() += 1,
                Err(_) => panic!("payload {index} ({mutation}, sealed: {sealed}) failed as said above: {bytes:02x?}"),
            }
        }
        report(&tally);
    });
}

/// Every mutation reached the decoders, and every refusal was met: a test whose payloads are all refused by their
/// checksum shows little.
fn report(tally: &Tally) {
    let (accepted, refused) = (tally.accepted.values().sum::<u64>(), tally.refused.values().sum::<u64>());
    println!("decoded {accepted}: {:?}\nrefused {refused}: {:?}", tally.accepted, tally.refused);
    assert!(accepted >= count() / 5, "{accepted} of {} were decoded", count());
    for (mutation, _) in MUTATIONS {
        // The exact length is part of the format, so bytes after a payload are always too many.
        let decoded = tally.accepted.contains_key(mutation);
        assert!(decoded || mutation == "extended", "no payload was decoded that was {mutation}");
    }
    for refusal in [
        "truncated",
        "trailing",
        "magic",
        "version",
        "checksum",
        "codec",
        "bits",
        "bucket",
        "elements",
        "levels",
        "dtype",
        "flags",
        "reserved",
        "entropy",
        "words",
    ] {
        assert!(tally.refused.contains_key(refusal), "no payload was refused for its {refusal}");
    }
}

#[test]
fn a_tensor_that_the_pool_decodes_is_metered_on_its_threads() {
    on_metered_threads(|| {
        // More than a task of 65536 elements, so that several threads decode. The pool keeps a queue of jobs, in blocks
        // that a first use allocates; the room for it does not grow with the payload.
        const POOL: u64 = 64 << 10;
        for (codec, bits) in [(1, 3), (2, 3), (4, 1)] {
            let n = 1_000_000;
            let levels = if bits == 1 { 1 } else { 3 };
            let fields = Fields { codec, bits, bucket: 9, n, levels, dtype: 0, flags: 0 };
            let mut bytes = fields.write().to_vec();
            let mut random = Random(7);
            bytes.resize_with(fields.length() as usize, || random.bits() as u8);
            reader::seal(&mut bytes);
            let accepted = hostile::receive(&bytes).expect("sealed");
            let decode = || Device::cpu().decode(&accepted.payload).expect("an accepted payload decodes");
            let decoded = meter::bounded("a decode on the pool", 4 * n + OVERHEAD + POOL, decode);
            assert!(decoded.iter().zip(&accepted.values).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    });
}

/// What a reader must not do: it makes room for the elements that a header claims before it looks at the length.
fn careless(bytes: &[u8]) -> Result<Payload, PayloadError> {
    let claimed = bytes.first_chunk::<32>().map_or(0, |head| Fields::of(head).n);
    let room: Vec<f32> = std::hint::black_box(Vec::with_capacity(claimed as usize));
    drop(room);
    Payload::from_bytes(bytes)
}

#[test]
fn the_meter_sees_an_allocation_before_the_check() {
    let fields = Fields { codec: 1, bits: 4, bucket: 9, n: 1 << 20, levels: 7, dtype: 0, flags: 0 };
    let mut bytes = fields.write().to_vec();
    reader::seal(&mut bytes);
    let (result, held) = meter::measure(|| careless(&bytes));
    assert!(matches!(result, Err(PayloadError::Truncated { .. })), "{result:?}");
    assert_eq!(held, 4 << 20, "the room that the header claims");
    let found = catch_unwind(|| meter::bounded("a careless reader", 0, || careless(&bytes)));
    assert!(found.is_err(), "the meter let 4 MiB pass");
    let (result, held) = meter::measure(|| Payload::from_bytes(&bytes));
    assert!(result.is_err() && held == 0, "the reader held {held} bytes");
}

#[test]
fn the_meter_counts_one_group_alone() {
    // Two tests' pools at once, as one process runs them: what one holds is not counted for the other, also after a
    // measurement on the same threads.
    let (stop, started) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            on_metered_threads(|| {
                started.wait();
                while !stop.load(Ordering::Relaxed) {
                    rayon::broadcast(|_| drop(std::hint::black_box(vec![0u8; 1 << 20])));
                }
            });
        });
        on_metered_threads(|| {
            started.wait();
            let room = || rayon::broadcast(|_| drop(std::hint::black_box(vec![0u8; 100_000])));
            let held: Vec<u64> = (0..20).map(|_| meter::measure(room).1).collect();
            stop.store(true, Ordering::Relaxed);
            assert!(held.iter().all(|&bytes| (100_000..300_000).contains(&bytes)), "{held:?}");
        });
    });
}

#[test]
fn the_meter_counts_what_is_held_and_not_what_was() {
    on_metered_threads(|| {
        let room = |bytes: usize| std::hint::black_box(vec![0u8; bytes]);
        let one_after_another = || (0..100).for_each(|_| drop(room(1000)));
        assert_eq!(meter::measure(one_after_another).1, 1000);
        assert_eq!(meter::measure(|| [room(1000), room(500)]).1, 1500);
        let grown = || {
            let mut grown = room(1000);
            grown.reserve_exact(1000);
            grown
        };
        assert_eq!(meter::measure(grown).1, 3000, "both blocks are held while one is copied into the other");
        let (_, held) = meter::measure(|| rayon::broadcast(|_| drop(room(100_000))));
        assert!(held >= 100_000, "{held} bytes on the pool's threads");
        let older = room(5000);
        assert_eq!(meter::measure(|| drop(older)).1, 0);
    });
}
