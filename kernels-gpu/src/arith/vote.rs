//! Votes on bits, 32 at a time: the counts of 32 places lie across words, which are planes of their binary digits.

/// Counts of 32 places, below 2^`PLANES`.
#[derive(Clone, Copy, Debug)]
pub struct Votes<const PLANES: usize>([u32; PLANES]);

/// Voters that [`Votes`] of so many planes count.
pub const MOST_VOTERS: u32 = (1 << PLANES) - 1;

/// Planes that the most voters take.
pub const PLANES: usize = 16;

impl<const PLANES: usize> Votes<PLANES> {
    /// No vote yet.
    pub const NONE: Self = Self([0; PLANES]);

    /// Counts a voter's bits.
    #[inline(always)]
    pub fn add(&mut self, bits: u32) {
        let mut carry = bits;
        let mut plane = 0;
        while plane < PLANES {
            let both = self.0[plane] & carry;
            self.0[plane] ^= carry;
            carry = both;
            plane += 1;
        }
    }

    /// The places where more than half of so many voters have a one, and those where half of them have.
    #[inline(always)]
    pub fn outcome(&self, voters: u32) -> [u32; 2] {
        let half = voters / 2;
        let (mut above, mut equal) = (0, !0);
        let mut plane = PLANES;
        while plane > 0 {
            plane -= 1;
            // All ones where the plane's digit of the half is one.
            let digit = (half >> plane & 1).wrapping_neg();
            above |= equal & self.0[plane] & !digit;
            equal &= !(self.0[plane] ^ digit);
        }
        // Half of an odd number is cut: as many ones are fewer than half.
        [above, equal & (voters & 1).wrapping_sub(1)]
    }
}

/// The outcome of a place, from the lowest bits of both masks: 1, 0 for a tie, or -1.
#[inline(always)]
pub fn value(above: u32, equal: u32) -> f32 {
    let sides = 0xbf80_0000 ^ (above & 1) << 31;
    f32::from_bits(sides & (equal & 1).wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_that_of_the_counts() {
        let mut state = 0x9e37_79b9u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        };
        for voters in [1, 2, 3, 4, 7, 8, 15, 64, 255, 256, 1000] {
            let (mut few, mut many, mut counts) = (Votes::<4>::NONE, Votes::<PLANES>::NONE, [0; 32]);
            for _ in 0..voters {
                let bits = random() ^ random() << 16;
                few.add(bits);
                many.add(bits);
                counts.iter_mut().enumerate().for_each(|(place, count)| *count += bits >> place & 1);
            }
            let [above, equal] = many.outcome(voters);
            for (place, count) in counts.into_iter().enumerate() {
                let expected = (2 * count).cmp(&voters) as i32 as f32;
                assert_eq!(value(above >> place, equal >> place), expected, "{count} of {voters}");
            }
            assert!(voters > 15 || few.outcome(voters) == [above, equal], "{voters}");
        }
    }
}
