//! QSGD on the CPU: the twin of `kernels-gpu/src/kernels/qsgd.rs` and `shaders/src/qsgd.wgsl`.

use gradwire_kernels::arith::float::{INF_BITS, MAGNITUDE, NAN_BITS};
use gradwire_kernels::arith::norm;
use gradwire_kernels::arith::qsgd::{Encoder, Qsgd};
use gradwire_kernels::arith::quantizer::Quantizer;
use gradwire_kernels::params::{EncodeParams, PARTIAL_WORDS, encode_flags};

use super::bucketed::Measured;

/// The largest magnitude's bits: NaN is above infinity, infinity above every number.
#[inline(always)]
fn largest(values: &[u32]) -> u32 {
    values.iter().fold(0, |largest, v| largest.max(v & MAGNITUDE))
}

/// The sum of squares, aligned to the largest magnitude.
#[inline(always)]
fn sum(values: &[u32], largest: u32) -> u64 {
    let alignment = norm::alignment(largest);
    values.iter().map(|v| norm::square(norm::aligned(v & MAGNITUDE, alignment))).sum()
}

impl Measured for Qsgd {
    #[inline(always)]
    fn statistic(p: &EncodeParams, values: &[u32]) -> [u32; 4] {
        let largest = largest(values);
        let sum = if p.has(encode_flags::L2) && largest != 0 && largest < INF_BITS { sum(values, largest) } else { 0 };
        [largest, sum as u32, (sum >> 32) as u32, 0]
    }

    fn combine(p: &EncodeParams, partials: &[u32]) -> [u32; 2] {
        let partials = || partials.chunks_exact(PARTIAL_WORDS as usize);
        let largest = partials().map(|s| s[0]).max().unwrap_or(0);
        if largest >= INF_BITS {
            return [NAN_BITS, 0];
        }
        if largest == 0 || !p.has(encode_flags::L2) {
            return [largest, 0];
        }
        let alignment = norm::alignment(largest);
        let total = partials().map(|s| {
            let shift = 2 * (alignment - norm::alignment(s[0])).min(31);
            u128::from((u64::from(s[1]) | u64::from(s[2]) << 32) >> shift)
        });
        let (sum, halvings) = norm::reduce(total.sum());
        [norm::from_sum(sum, halvings, alignment).to_bits(), 0]
    }

    #[inline(always)]
    fn measure(p: &EncodeParams, values: &[u32]) -> Encoder {
        let [largest, low, high, _] = Self::statistic(p, values);
        let norm = if largest >= INF_BITS {
            NAN_BITS
        } else if largest == 0 || !p.has(encode_flags::L2) {
            largest
        } else {
            norm::from_sum(u64::from(low) | u64::from(high) << 32, 0, norm::alignment(largest)).to_bits()
        };
        Self::encoder(p, [norm, 0])
    }
}
