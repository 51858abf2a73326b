//! Several tensors in one session, for runs to take turns with: a cache that held the last one's is of no use to the
//! next.

use std::ops::Range;

use gradwire::Error;
use gradwire::plan::Pass;
use gradwire::session::{Role, Session, Sizes};

/// Where sets of buffers begin.
const ALIGNMENT: u64 = 256;

/// Equal sets of buffers, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sets {
    pub(crate) count: u32,
    /// Bytes from one set to the next, buffer by buffer.
    stride: Sizes,
}

impl Sets {
    /// As many sets of these sizes that a turn through all of them touches `target` bytes, where a run touches
    /// `touched`; but no more than fit `memory`, and at least one.
    pub(crate) fn new(one: Sizes, touched: u64, target: u64, memory: u64) -> Self {
        let stride = Sizes(one.0.map(|bytes| bytes.next_multiple_of(ALIGNMENT)));
        let each: u64 = stride.0.iter().sum();
        let wanted = target.div_ceil(touched.max(1));
        let fitting = memory / each.max(1);
        let count = wanted.min(fitting).clamp(1, u64::from(u32::MAX)) as u32;
        Self { count, stride }
    }

    /// Half as many; `None` if there is one.
    pub(crate) fn fewer(self) -> Option<Self> {
        (self.count > 1).then_some(Self { count: self.count / 2, ..self })
    }

    /// Bytes of each buffer, for all sets.
    pub(crate) fn sizes(&self) -> Sizes {
        Sizes(self.stride.0.map(|bytes| bytes * u64::from(self.count)))
    }

    /// Where a set's part of a buffer begins.
    pub(crate) fn at(&self, set: u32, role: Role) -> u64 {
        self.stride.of(role) * u64::from(set)
    }

    /// The passes over each set in turn.
    pub(crate) fn turn(&self, passes: &[Pass]) -> Vec<Pass> {
        let over = |set: u32| passes.iter().map(move |pass| pass.moved(|role| self.at(set, role)));
        (0..self.count).flat_map(over).collect()
    }
}

/// Fills a part of a buffer with a pattern, again and again, so that this machine never holds all of it.
///
/// # Errors
/// As [`Session::write`].
pub(crate) fn repeated(session: &mut dyn Session, role: Role, part: Range<u64>, pattern: &[u8]) -> Result<(), Error> {
    for at in part.clone().step_by(pattern.len().max(1)) {
        let bytes = pattern.len().min((part.end - at) as usize);
        session.write(role, at, &pattern[..bytes])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gradwire::plan::Limits;
    use gradwire::{Codec, Dtype, Qsgd, Seed};

    use super::*;

    fn sizes(input: u64, codes: u64) -> Sizes {
        let mut sizes = Sizes::default();
        sizes.0[Role::Input as usize] = input;
        sizes.0[Role::Codes as usize] = codes;
        sizes
    }

    #[test]
    fn a_turn_touches_what_was_asked_for() {
        let count = |touched, target, memory| Sets::new(sizes(1000, 100), touched, target, memory).count;
        assert_eq!(count(1100, 1 << 30, u64::MAX), (1 << 30) / 1100 + 1, "rounded up");
        assert_eq!(count(1100, 1100, u64::MAX), 1);
        assert_eq!(count(1100, 1 << 30, 12_800), 10, "each set takes 1024 + 256 bytes");
        assert_eq!(count(1 << 40, 1 << 30, 0), 1, "one in any case");
        assert_eq!(count(0, 10, 1280 * 7), 7, "nothing touched does not divide by nothing");
    }

    #[test]
    fn sets_do_not_overlap_and_begin_where_bindings_may() {
        let sets = Sets::new(sizes(1000, 100), 1100, 3000, u64::MAX);
        assert_eq!(sets.count, 3);
        assert_eq!([0, 1, 2].map(|set| sets.at(set, Role::Input)), [0, 1024, 2048]);
        assert_eq!([0, 1, 2].map(|set| sets.at(set, Role::Codes)), [0, 256, 512]);
        assert_eq!((sets.sizes().of(Role::Input), sets.sizes().of(Role::Output)), (3072, 0));
        assert_eq!(sets.fewer().map(|s| s.count), Some(1));
        assert_eq!(sets.fewer().and_then(Sets::fewer), None);
    }

    #[test]
    fn every_pass_is_moved_to_every_set() {
        let plan = Qsgd::bits(4).bucket(512).plan(100_000, Dtype::F32).unwrap();
        let passes = plan.passes(Seed::new(1), &Limits::NONE).unwrap();
        let one = plan.sizes();
        let sets = Sets::new(one, 1, 4, u64::MAX);
        let turn = sets.turn(&passes);
        assert_eq!(turn.len(), 4 * passes.len());
        for (i, pass) in turn.iter().enumerate() {
            let (set, original) = ((i / passes.len()) as u32, &passes[i % passes.len()]);
            for role in Role::ALL {
                let (span, from) = (pass.bindings().of(role), original.bindings().of(role));
                assert_eq!(span.bytes, from.bytes);
                let by = if from.bytes > 0 { sets.at(set, role) } else { 0 };
                assert_eq!(span.offset, from.offset + by, "{role:?}");
                assert!(span.offset + span.bytes <= sets.sizes().of(role));
            }
        }
    }

    #[test]
    fn the_cpu_refuses_what_was_moved() {
        let plan = Qsgd::bits(4).bucket(512).plan(1000, Dtype::F32).unwrap();
        let sets = Sets::new(plan.sizes(), 1, 2, u64::MAX);
        let device = gradwire::Device::cpu();
        let mut session = device.session(sets.sizes()).unwrap();
        let turn = sets.turn(&plan.passes(Seed::new(1), &Limits::NONE).unwrap());
        session.run(&turn[..1]).unwrap();
        assert!(session.run(&turn).unwrap_err().to_string().contains("moved"));
    }
}
