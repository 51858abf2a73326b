//! Groups that count, fail or damage, and gradients of few bits.

use std::collections::BTreeMap;

use gradwire::{Collective, CollectiveError, Compressor, Policy, Tensor};
use gradwire_collectives::Threads;
use gradwire_tests::cases;

/// Counts the bytes that this rank sends to others, and fails or damages where it is told to.
pub(crate) struct Watched {
    pub(crate) group: Threads,
    pub(crate) sent: u64,
    pub(crate) calls: u32,
    /// Of an operation's name, how many of its calls there were.
    pub(crate) kinds: BTreeMap<&'static str, u32>,
    /// The call that fails on this rank, counted from 1.
    pub(crate) fails: u32,
    /// The call whose received bytes are damaged.
    pub(crate) damages: u32,
}

impl Watched {
    pub(crate) fn new(group: Threads) -> Self {
        Self { group, sent: 0, calls: 0, kinds: BTreeMap::new(), fails: 0, damages: 0 }
    }

    fn call(&mut self, kind: &'static str, sent: u64) -> Result<(), CollectiveError> {
        self.calls += 1;
        self.sent += sent;
        *self.kinds.entry(kind).or_default() += 1;
        match self.calls == self.fails {
            true => Err(CollectiveError::Left { rank: self.rank(), asked: "a test".into() }),
            false => Ok(()),
        }
    }

    fn others(&self) -> u64 {
        u64::from(self.ranks()) - 1
    }

    fn damage(&self, bytes: &mut [u8]) {
        if self.calls == self.damages
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
        }
    }
}

impl Collective for Watched {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn ranks(&self) -> u32 {
        self.group.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.call("all_gather", self.others() * mine.len() as u64)?;
        self.group.all_gather(mine, all)?;
        let other = (self.rank() as usize + 1) % all.len();
        self.damage(&mut all[other]);
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        let all = to.iter().map(|part| part.len()).sum::<usize>() - to[self.rank() as usize].len();
        self.call("all_to_all", all as u64)?;
        self.group.all_to_all(to, from)?;
        let other = (self.rank() as usize + 1) % from.len();
        self.damage(&mut from[other]);
        Ok(())
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.call("all_reduce_sum", 0)?;
        self.group.all_reduce_sum(values)
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.call("exchange", mine.len() as u64)?;
        self.group.exchange(peer, mine, theirs)?;
        self.damage(theirs);
        Ok(())
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.call("broadcast", if root == self.rank() { self.others() * bytes.len() as u64 } else { 0 })?;
        self.group.broadcast(root, bytes)
    }
}

/// Multiples of 1/16 up to 8 or so, of each rank and step its own.
pub(crate) fn dyadic(n: usize, rank: u32, step: u64) -> Vec<f32> {
    let values = cases::normal(n, 7000 + 100 * u64::from(rank) + step);
    let rms = (values.iter().map(|v| v * v).sum::<f32>() / n as f32).sqrt();
    let mut values: Vec<f32> = values.iter().map(|v| (v / rms * 32.0).round() / 16.0).collect();
    // Nothing is the same in all ranks, and some entries stand out.
    values.iter_mut().skip(rank as usize).step_by(37).for_each(|v| *v *= 4.0);
    values
}

/// Three tensors, the middle one in `other` where there is such a recipe.
pub(crate) fn of(text: &str, other: Option<&str>) -> Compressor {
    let tensors = [Tensor::new("a", [24, 25]), Tensor::new("b", [7, 30]), Tensor::new("c", [500])];
    let policy = Policy::new(text).expect(text).small(0);
    let policy = match other {
        Some(other) => policy.named("b", other).expect(other),
        None => policy,
    };
    Compressor::with_policy(&policy, &tensors, 5).expect(text)
}

/// The number that was multiplied by 1/P and rounded, of multiples of `unit`.
pub(crate) fn sum_of(mean: f32, ranks: u32, unit: f64) -> f64 {
    let sum = (f64::from(mean) * f64::from(ranks) / unit).round() * unit;
    assert_eq!(((sum as f32) * (1.0 / ranks as f32)).to_bits() & 0x7fff_ffff, mean.to_bits() & 0x7fff_ffff, "{mean}");
    sum
}

/// What of the gradients and residuals is neither in the sum nor in the residuals after it: nothing, to the bit.
pub(crate) fn expect_mass(before: &[Vec<f32>], means: &[f32], after: &[Vec<f32>], ranks: u32, unit: f64, what: &str) {
    for (index, mean) in means.iter().enumerate() {
        let sum = |all: &[Vec<f32>]| all.iter().map(|v| f64::from(v[index])).sum::<f64>();
        let (had, left) = (sum(before), sum(after));
        assert_eq!(had, sum_of(*mean, ranks, unit) + left, "{what}: element {index} of {ranks} ranks");
    }
}

/// A group of two, whose other rank sends what is made of this rank's own message.
pub(crate) struct Forged<F>(pub(crate) F);

impl<F: FnMut(&[u8]) -> Vec<u8> + Send> Collective for Forged<F> {
    fn rank(&self) -> u32 {
        0
    }

    fn ranks(&self) -> u32 {
        2
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        *all = vec![mine.to_vec(), self.0(mine)];
        Ok(())
    }

    fn all_to_all(&mut self, _: &[&[u8]], _: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn exchange(&mut self, _: u32, _: &[u8], _: &mut Vec<u8>) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&mut self, _: u32, _: &mut Vec<u8>) -> Result<(), CollectiveError> {
        Ok(())
    }
}
