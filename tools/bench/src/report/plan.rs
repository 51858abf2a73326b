//! What is still to run, and how much of the time each part is worth.

use gradwire_ptx::TARGETS;

use super::place::Place;
use super::stage::How;

/// A part that is still to run. Each gets its weight's share of the time that is left, so what ends early leaves time
/// to the others; those whose results are worth most come first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Planned {
    /// Whether it is the artifact that would be chosen.
    Verify(Place, How, bool),
    Bench(Place),
    Peer(&'static str),
    Sanitizer(&'static str),
}

impl Planned {
    pub(super) fn weight(self) -> f64 {
        match self {
            Self::Verify(_, How::Full, _) => 80.0,
            Self::Verify(_, How::Smoke, _) => 5.0,
            Self::Verify(Place::Cpu, ..) => 4.0,
            Self::Verify(_, _, true) => 25.0,
            Self::Verify(_, _, false) => 15.0,
            Self::Bench(Place::Cuda(_)) => 80.0,
            Self::Bench(Place::Wgpu) => 20.0,
            Self::Bench(_) => 12.0,
            Self::Peer(_) => 10.0,
            Self::Sanitizer(_) => 40.0,
        }
    }

    /// What is measured on a device that is there: the best artifact first, the others after the timings.
    pub(super) fn of(place: Place, capability: Option<(u32, u32)>, quick: bool, full: bool) -> Vec<Self> {
        let depth = match (place, quick, full) {
            // An interpreter gets through the small suite alone.
            (Place::PtxMachine(_), ..) | (_, true, _) => How::Smoke,
            (_, _, true) => How::Full,
            _ => How::Quick,
        };
        let most = capability.map_or(0, |(major, minor)| 10 * major + minor);
        let mut targets = TARGETS.to_vec();
        targets.retain(|target| *target <= most);
        targets.sort_unstable_by(|a, b| b.cmp(a));
        let mut places = targets.iter().map(|target| place.with_target(*target));
        let best = places.next().unwrap_or(place);
        // CUDA loads what a user's device would: where the best is refused, a lower one.
        let timed = if matches!(place, Place::Cuda(_)) { place } else { best };
        let less = if depth == How::Full { How::Quick } else { depth };
        let others = places.map(|place| Self::Verify(place, less, false));
        [Self::Verify(best, depth, true), Self::Bench(timed)].into_iter().chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_artifact_that_fits_is_verified_and_the_best_first() {
        use Planned::{Bench, Verify};
        let cuda = |target| Place::Cuda(Some(target));
        assert_eq!(
            Planned::of(Place::Cuda(None), Some((7, 5)), false, true),
            [
                Verify(cuda(70), How::Full, true),
                Bench(Place::Cuda(None)),
                Verify(cuda(60), How::Quick, false),
                Verify(cuda(35), How::Quick, false)
            ]
        );
        assert_eq!(Planned::of(Place::Cuda(None), Some((12, 0)), false, false).len(), 6);
        assert_eq!(
            Planned::of(Place::Wgpu, None, true, false),
            [Verify(Place::Wgpu, How::Smoke, true), Bench(Place::Wgpu)]
        );
        let machine = Planned::of(Place::PtxMachine(60), Some((6, 0)), false, false);
        assert_eq!(machine[..2], [Verify(Place::PtxMachine(60), How::Smoke, true), Bench(Place::PtxMachine(60))]);
        assert_eq!(machine.len(), 3);
        assert_eq!(
            Planned::of(Place::Cuda(None), Some((3, 0)), false, false)[0],
            Verify(Place::Cuda(None), How::Quick, true)
        );
    }
}
