//! A warp: its registers, its place in the grid, and the stack that divergent flow makes.

/// Threads of a warp.
pub(crate) const LANES: usize = 32;

/// One 16- or 32-bit value a lane; 16-bit ones have zeros above.
pub(crate) type Narrow = [u32; LANES];
/// One 64-bit value a lane.
pub(crate) type Wide = [u64; LANES];

/// Lanes that go the same way, and where they meet the others again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// The next instruction.
    pub(crate) pc: usize,
    /// The lanes.
    pub(crate) mask: u32,
    /// The instruction before which these lanes stop, to go on with the frame below.
    pub(crate) join: usize,
}

/// Where a warp stands in its launch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// `%ctaid.x`.
    pub(crate) block: u32,
    /// `%nctaid.x`.
    pub(crate) grid: u32,
    /// `%ntid.x`.
    pub(crate) threads: u32,
    /// `%tid.x` of lane 0.
    pub(crate) first: u32,
}

/// A warp's registers and flow.
#[derive(Debug, Default)]
pub(crate) struct Warp {
    pub(crate) narrow: Vec<Narrow>,
    pub(crate) wide: Vec<Wide>,
    pub(crate) preds: Vec<u32>,
    /// The carry flag of `add.cc` and `sub.cc`, a bit per lane.
    pub(crate) carry: u32,
    /// The innermost divergence last.
    pub(crate) stack: Vec<Frame>,
    /// The lanes that the launch started.
    pub(crate) started: u32,
    /// The lanes that have waited for the kernel before, or need not.
    pub(crate) waited: u32,
    /// How many `bar.warp.sync` it has passed.
    pub(crate) phase: u32,
    /// Instructions it has executed.
    pub(crate) executed: u64,
    pub(crate) place: Place,
}

/// A source of 16 or 32 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Register(usize),
    Constant(u32),
    Special(Special),
}

/// A source of 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WideSource {
    Register(usize),
    Constant(u64),
}

/// A special register of one dimension; the others are constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread,
    Threads,
    Block,
    Blocks,
    Lane,
    WarpIndex,
}

impl Warp {
    /// Puts the `started` lanes before the first instruction of a kernel with as many registers. What these hold is of
    /// no account: no kernel that could read one before it writes to it is loaded.
    pub(crate) fn start(&mut self, [preds, narrow, wide]: [usize; 3], place: Place, started: u32) {
        fn at_least<T: Copy>(registers: &mut Vec<T>, count: usize, zero: T) {
            if registers.len() < count {
                // Anew, since nothing in them is worth a copy.
                *registers = vec![zero; count];
            }
        }
        at_least(&mut self.preds, preds, 0);
        at_least(&mut self.narrow, narrow, [0; LANES]);
        at_least(&mut self.wide, wide, [0; LANES]);
        self.stack.clear();
        self.stack.push(Frame { pc: 0, mask: started, join: usize::MAX });
        (self.started, self.phase, self.executed, self.place) = (started, 0, 0, place);
    }

    #[inline(always)]
    pub(crate) fn get(&self, source: Source) -> Narrow {
        match source {
            Source::Register(index) => self.narrow[index],
            Source::Constant(value) => [value; LANES],
            Source::Special(special) => self.special(special),
        }
    }

    #[inline(always)]
    pub(crate) fn get_wide(&self, source: WideSource) -> Wide {
        match source {
            WideSource::Register(index) => self.wide[index],
            WideSource::Constant(value) => [value; LANES],
        }
    }

    fn special(&self, special: Special) -> Narrow {
        let place = self.place;
        match special {
            Special::Thread => std::array::from_fn(|lane| place.first + lane as u32),
            Special::Threads => [place.threads; LANES],
            Special::Block => [place.block; LANES],
            Special::Blocks => [place.grid; LANES],
            Special::Lane => std::array::from_fn(|lane| lane as u32),
            Special::WarpIndex => [place.first / LANES as u32; LANES],
        }
    }

    #[inline(always)]
    pub(crate) fn set(&mut self, index: usize, value: Narrow, mask: u32) {
        blend(&mut self.narrow[index], value, mask);
    }

    #[inline(always)]
    pub(crate) fn set_wide(&mut self, index: usize, value: Wide, mask: u32) {
        blend(&mut self.wide[index], value, mask);
    }

    #[inline(always)]
    pub(crate) fn set_pred(&mut self, index: usize, value: u32, mask: u32) {
        self.preds[index] = (self.preds[index] & !mask) | (value & mask);
    }
}

#[inline(always)]
fn blend<T: Copy>(to: &mut [T; LANES], value: [T; LANES], mask: u32) {
    if mask == !0 {
        *to = value;
        return;
    }
    for lane in lanes(mask) {
        to[lane] = value[lane];
    }
}

/// The lanes of a mask, in order.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

/// A bit per lane.
#[inline(always)]
pub(crate) fn bits(mut of: impl FnMut(usize) -> bool) -> u32 {
    let mut mask = 0;
    for lane in 0..LANES {
        mask |= u32::from(of(lane)) << lane;
    }
    mask
}
