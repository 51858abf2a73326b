/// Where the random draws of an encode come from: (run, worker, step, tensor).
///
/// The draw of an element is Philox4x32-7 of this address and the element's index, so it is the same on every backend
/// and can be replayed. Give every step, every tensor of a model and every worker an address of its own: draws that
/// repeat make rounding errors that add up instead of cancelling.
///
/// | what the seed is for | workers |
/// |---|---|
/// | QSGD, uniform, quantized values of a sparse payload | each its own: [`Seed::worker`] with its rank |
/// | signs of a rotation | one for all, or each its own: [`Rotation::own`](crate::Rotation::own) |
/// | PowerSGD | one for all, as the first factors must agree: a seed of another worker than 0 is refused |
///
/// ```
/// use gradwire::Seed;
/// let seed = Seed::new(42).step(1000).tensor(7);
/// assert_ne!(seed, seed.tensor(8));
/// assert_ne!(seed, seed.worker(1));
/// assert_eq!(seed, seed.worker(0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seed {
    run: u64,
    step: u64,
    tensor: u32,
    worker: u32,
}

/// How far apart the keys of neighbouring workers are. Steele and Vigna, "Computationally easy, spectrally good
/// multipliers for congruential pseudorandom number generators", 2022: multiples of it stay far from one another.
const WORKERS_APART: u64 = 0xd134_2543_de82_ef95;

impl Seed {
    /// The draws of a run, at step 0, tensor 0 and worker 0.
    pub const fn new(run: u64) -> Self {
        Self { run, step: 0, tensor: 0, worker: 0 }
    }

    /// The same run at another step.
    pub const fn step(self, step: u64) -> Self {
        Self { step, ..self }
    }

    /// The same step at another tensor of the model.
    pub const fn tensor(self, tensor: u32) -> Self {
        Self { tensor, ..self }
    }

    /// The same tensor on another worker: `rank` is the worker's number, and the plain seed is that of worker 0.
    ///
    /// With draws of its own, each worker's rounding is independent of the others', so the error of a mean over `w`
    /// workers shrinks by the square root of `w`. With one seed for all it would not shrink at all where the gradients
    /// are alike.
    ///
    /// Philox's key becomes run + rank * 0xd1342543de82ef95, modulo 2^64. So no two workers of a run share a key, nor
    /// do any workers of two runs whose numbers are less than 2^31 apart. A receiver needs to know nothing of it.
    ///
    /// ```
    /// use gradwire::{Device, Qsgd, Seed};
    /// let (device, codec, gradient) = (Device::cpu(), Qsgd::bits(2), [0.5f32, 1.0, -0.2, 0.7]);
    /// let mut mean = [0.0f32; 4];
    /// for rank in 0..16 {
    ///     let sent = device.encode(&codec, &gradient, Seed::new(42).step(1).worker(rank))?;
    ///     device.decode_add(&sent, 1.0 / 16.0, &mut mean)?;
    /// }
    /// assert!(mean[0] > 0.0 && mean[0] < 1.0); // a single worker sends 0 or 1 for 0.5
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub const fn worker(self, rank: u32) -> Self {
        Self { worker: rank, ..self }
    }

    pub(crate) fn key(self) -> [u32; 2] {
        halves(self.run.wrapping_add(u64::from(self.worker).wrapping_mul(WORKERS_APART)))
    }

    /// So many steps later, as a model's table has it.
    pub(crate) const fn later(self, steps: u64) -> Self {
        Self { step: self.step.wrapping_add(steps), ..self }
    }

    pub(crate) fn step_words(self) -> [u32; 2] {
        halves(self.step)
    }

    pub(crate) fn tensor_word(self) -> u32 {
        self.tensor
    }

    /// The seed's worker.
    pub(crate) fn rank(self) -> u32 {
        self.worker
    }
}

fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_0_is_the_plain_seed_and_no_other_is() {
        let seed = Seed::new(0x0123_4567_89ab_cdef).step(5).tensor(9);
        assert_eq!(seed.worker(0).key(), [0x89ab_cdef, 0x0123_4567]);
        // The lower word is enough: an odd multiplier maps 32 bits one to one. PowerSGD's columns change the upper word
        // alone, so that no worker's key is that of a column.
        assert_eq!(WORKERS_APART & 1, 1);
        for rank in [1, 2, 3, 64, 1 << 16, u32::MAX] {
            assert_ne!(seed.worker(rank).key()[0], seed.key()[0], "{rank}");
            assert_eq!(seed.worker(rank).step_words(), seed.step_words());
        }
        assert_eq!(seed.worker(7).worker(2), seed.worker(2), "the last one counts");
    }

    /// Multiples of the distance come nearest to 0 at the denominators of its continued fraction, so looking there is
    /// looking everywhere.
    #[test]
    fn runs_less_than_2_to_the_31_apart_share_no_key() {
        let (mut above, mut below) = (u128::from(WORKERS_APART), 1u128 << 64);
        let (mut before, mut denominator) = (1u128, 0u128);
        let mut nearest = u64::MAX;
        while below != 0 {
            let quotient = above / below;
            (above, below) = (below, above % below);
            (before, denominator) = (denominator, quotient * denominator + before);
            if (1..1 << 32).contains(&denominator) {
                let multiple = WORKERS_APART.wrapping_mul(denominator as u64);
                nearest = nearest.min(multiple).min(multiple.wrapping_neg());
            }
        }
        assert!(nearest >= 1 << 31, "{nearest}");
        for apart in 1..100_000u64 {
            let multiple = WORKERS_APART.wrapping_mul(apart);
            assert!(multiple.min(multiple.wrapping_neg()) >= nearest, "{apart}");
        }
    }
}
