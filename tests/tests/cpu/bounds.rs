//! How far uniform quantization is off, where binary32's own rounding weighs as much as the codec's.

use gradwire::Device;
use gradwire::backend::cpu::{Cpu, Simd};
use gradwire_tests::bounds::{ranges, uniform};
use gradwire_tests::cases::Case;
use gradwire_tests::oracle::Kind;

const KINDS: [Kind; 2] = [Kind::Uniform, Kind::UniformNearest];

fn devices() -> impl Iterator<Item = Device> {
    [Simd::Baseline, Simd::Avx2, Simd::Avx512]
        .into_iter()
        .filter_map(|simd| Cpu::with_simd(simd).ok())
        .map(Device::from_cpu)
}

#[test]
fn the_bound_holds_at_every_width_and_the_codec_s_own_part_alone_does_not() {
    let x = ranges(4000, 71);
    for kind in KINDS {
        let mut worst = 0.0f64;
        for bits in 1..=8 {
            for device in devices() {
                let passed = uniform(&device, &Case::new(kind, bits, Some(32)), &x).unwrap_or_else(|e| panic!("{e}"));
                worst = worst.max(passed);
            }
        }
        // (max - min)/L, or half of it, is what one would expect; ranges of a few last places go beyond it.
        assert!(worst > 1.4, "{kind:?}: the ranges do not reach where rounding matters: {worst}");
        println!("{kind:?}: up to {worst:.2} times (max - min)/L{}", if kind == Kind::Uniform { "" } else { "/2" });
    }
}

#[test]
fn it_holds_where_the_tensor_is_one_bucket() {
    for (at, x) in ranges(1000, 72).chunks(32).enumerate() {
        for kind in KINDS {
            let case = Case::new(kind, 1 + at as u32 % 8, None);
            uniform(&Device::cpu(), &case, x).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
