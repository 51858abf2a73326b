//! What a launch cost, in numbers that do not depend on the machine that counts.

use crate::warp::{LANES, lanes};

/// Bytes of a sector, in which a GPU moves memory between its L2 and its multiprocessors.
pub const SECTOR: u64 = 32;

/// Accesses to global memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Instructions, a warp's each.
    pub requests: u64,
    /// Sectors touched, an instruction's each once.
    pub sectors: u64,
    /// Distinct bytes asked for, an instruction's each once.
    pub needed: u64,
    /// Sectors that would do, were the bytes of each instruction consecutive and aligned.
    pub least: u64,
}

impl Traffic {
    fn add(&mut self, sectors: u64, needed: u64) {
        self.requests += 1;
        self.sectors += sectors;
        self.needed += needed;
        self.least += needed.div_ceil(SECTOR);
    }

    /// Bytes moved: whole sectors.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.sectors * SECTOR
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.sectors += other.sectors;
        self.needed += other.needed;
        self.least += other.least;
    }
}

/// An instruction that accesses global memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Its line in the module's text.
    pub line: u32,
    /// The instruction.
    pub text: String,
    /// What it moved.
    pub traffic: Traffic,
}

/// What a launch cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions executed, a warp's each.
    pub instructions: u64,
    /// Loads from global memory.
    pub loads: Traffic,
    /// Stores to global memory.
    pub stores: Traffic,
    /// Atomics on global memory.
    pub atomics: Traffic,
    /// Instructions that access shared memory, a warp's each.
    pub shared_requests: u64,
    /// Passes beyond the first that these take, for words that share a bank.
    pub bank_conflicts: u64,
    /// Barriers that a block has passed.
    pub barriers: u64,
    /// Words of global memory that are read strongly, by which blocks wait for one another.
    pub waited: u64,
    /// The instructions that access global memory, in the order of the text, those that were executed.
    pub sites: Vec<Site>,
}

impl Counts {
    /// All accesses to global memory.
    #[must_use]
    pub fn global(&self) -> Traffic {
        let mut sum = self.loads;
        sum += self.stores;
        sum += self.atomics;
        sum
    }
}

impl std::ops::AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Counts) {
        self.instructions += other.instructions;
        self.loads += other.loads;
        self.stores += other.stores;
        self.atomics += other.atomics;
        self.shared_requests += other.shared_requests;
        self.bank_conflicts += other.bank_conflicts;
        self.barriers += other.barriers;
        self.waited += other.waited;
        for site in &other.sites {
            match self.sites.iter_mut().find(|s| s.line == site.line && s.text == site.text) {
                Some(same) => same.traffic += site.traffic,
                None => self.sites.push(site.clone()),
            }
        }
    }
}

/// Counts an access to global memory of `bytes` by each lane of the mask.
#[inline]
pub(crate) fn global(traffic: &mut Traffic, addresses: &[u64; LANES], mask: u32, bytes: u32) {
    let mut all = [0; LANES];
    let mut count = 0;
    let mut rising = true;
    for lane in lanes(mask) {
        rising &= count == 0 || addresses[lane] >= all[count - 1];
        all[count] = addresses[lane];
        count += 1;
    }
    let all = &mut all[..count];
    if !rising {
        all.sort_unstable();
    }
    // An access is aligned and no longer than a sector, so it lies in one.
    let distinct = |unit: u64| {
        let changes = all.windows(2).filter(|pair| pair[0] / unit != pair[1] / unit).count();
        changes as u64 + u64::from(!all.is_empty())
    };
    traffic.add(distinct(SECTOR), distinct(u64::from(bytes)) * u64::from(bytes));
}

/// Passes beyond the first of an access to shared memory: 32 banks of words, each serving one word a pass; of accesses
/// wider than a word, a half or a quarter of the warp goes at a time.
pub(crate) fn conflicts(addresses: &[u64; LANES], mask: u32, bytes: u32) -> u64 {
    let words = bytes.div_ceil(4) as usize;
    let group = LANES / words;
    let mut extra = 0;
    for first in (0..LANES).step_by(group) {
        // A group's words are as many as a warp has lanes, however wide the access.
        let (mut asked, mut count) = ([0; LANES], 0);
        for lane in lanes(mask).filter(|lane| (first..first + group).contains(lane)) {
            for word in 0..words as u64 {
                asked[count] = addresses[lane] / 4 + word;
                count += 1;
            }
        }
        let asked = &mut asked[..count];
        if !asked.is_sorted() {
            asked.sort_unstable();
        }
        let mut banks = [0u8; 32];
        for (index, word) in asked.iter().enumerate() {
            banks[(word % 32) as usize] += u8::from(index == 0 || asked[index - 1] != *word);
        }
        extra += u64::from(banks.into_iter().max().unwrap_or(0).saturating_sub(1));
    }
    extra
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(of: impl Fn(usize) -> u64, mask: u32, bytes: u32) -> [u64; 3] {
        let mut traffic = Traffic::default();
        global(&mut traffic, &std::array::from_fn(of), mask, bytes);
        [traffic.sectors, traffic.needed, traffic.least]
    }

    #[test]
    fn sectors_of_usual_patterns() {
        assert_eq!(traffic(|i| 4 * i as u64, !0, 4), [4, 128, 4], "consecutive words");
        assert_eq!(traffic(|i| 4 * (31 - i) as u64, !0, 4), [4, 128, 4], "and backwards");
        assert_eq!(traffic(|i| 16 + 4 * i as u64, !0, 4), [5, 128, 4], "not aligned");
        assert_eq!(traffic(|i| 32 * i as u64, !0, 4), [32, 128, 4], "a sector per lane");
        assert_eq!(traffic(|_| 64, !0, 4), [1, 4, 1], "all the same word");
        assert_eq!(traffic(|i| 16 * i as u64, !0, 16), [16, 512, 16], "16 bytes per lane");
        assert_eq!(traffic(|i| i as u64, 0xff, 1), [1, 8, 1], "a few bytes");
    }

    #[test]
    fn conflicts_of_usual_patterns() {
        let count = |of: fn(u64) -> u64, bytes| conflicts(&std::array::from_fn(|i| of(i as u64)), !0, bytes);
        assert_eq!(count(|i| 4 * i, 4), 0);
        assert_eq!(count(|_| 12, 4), 0, "one word for all");
        assert_eq!(count(|i| 8 * i, 4), 1, "every other word");
        assert_eq!(count(|i| 128 * i, 4), 31, "one bank");
        assert_eq!(count(|i| 16 * i, 16), 0, "16 bytes per lane, a quarter at a time");
        assert_eq!(count(|i| i, 1), 0, "four lanes a word");
    }
}
