//! What the machine finds wrong: with a text, before it runs, and with a kernel, while it runs.

use std::fmt;

/// A text that the machine will not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Rejected {
    /// The line of the text, from 1.
    pub line: u32,
    /// What is wrong with it, and the statement.
    pub why: String,
}

impl Rejected {
    /// The same of a text that as many lines precede.
    pub(crate) fn behind(self, lines: u32) -> Self {
        Self { line: self.line + lines, ..self }
    }
}

/// An address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The device's memory.
    Global,
    /// A block's memory.
    Shared,
    /// A thread's memory.
    Local,
    /// The arguments.
    Param,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Param => "parameter",
        })
    }
}

/// One of two accesses that are not ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// The block.
    pub block: u32,
    /// The thread in the block. Where several threads have read, the last one of them.
    pub thread: u32,
    /// The line of the instruction.
    pub line: u32,
    /// Whether it wrote.
    pub wrote: bool,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, thread, line, wrote } = self;
        let verb = if *wrote { "wrote" } else { "read" };
        write!(f, "thread {thread} of block {block} {verb} it at line {line}")
    }
}

/// What a kernel did wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// No allocation, or not the whole of the access in it.
    #[error("{bytes} bytes at {space} address {address:#x} are out of bounds: {found}")]
    OutOfBounds {
        /// Where.
        space: Space,
        /// The address, in its space.
        address: u64,
        /// How much.
        bytes: u32,
        /// What there is instead.
        found: String,
    },
    /// An address that is not a multiple of the access's size.
    #[error("{space} address {address:#x} is not a multiple of {bytes}, the size of the access")]
    Misaligned {
        /// Where.
        space: Space,
        /// The address.
        address: u64,
        /// The size.
        bytes: u32,
    },
    /// A read of what nothing wrote.
    #[error("of the {bytes} bytes at {space} address {address:#x}, some were never written")]
    Unwritten {
        /// Where.
        space: Space,
        /// The address.
        address: u64,
        /// The size.
        bytes: u32,
    },
    /// Two threads at one place, one of them at least writing and not both atomically, and no barrier between.
    #[error("a race for {space} address {address:#x}: {other}, and no barrier is between")]
    Race {
        /// Where.
        space: Space,
        /// The address.
        address: u64,
        /// The earlier access, in this run's order.
        other: Party,
    },
    /// A barrier that only some lanes of a warp are at.
    #[error("a barrier in divergent flow: lanes {arrived:#010x} are at it, of {started:#010x} that were started")]
    DivergentBarrier {
        /// The lanes there.
        arrived: u32,
        /// The lanes that the launch started.
        started: u32,
    },
    /// Warps of a block at different barriers, or gone while others wait.
    #[error("a barrier in divergent flow: the warp of thread {other} {what}")]
    SplitBarrier {
        /// The first thread of the other warp.
        other: u32,
        /// Where that warp is.
        what: &'static str,
    },
    /// A branch that says it is uniform, and is not.
    #[error("`bra.uni` in divergent flow: lanes {taking:#010x} take it, of {of:#010x} that are at it")]
    DivergentBranch {
        /// The lanes that take it.
        taking: u32,
        /// The lanes that are there.
        of: u32,
    },
    /// A shuffle, vote or reduction whose members are not the lanes that are there.
    #[error("an exchange in divergent flow: it names lanes {members:#010x}, and {active:#010x} are at it")]
    DivergentExchange {
        /// The lanes of its member mask.
        members: u32,
        /// The lanes that execute it.
        active: u32,
    },
    /// A shuffle from a lane that does not take part.
    #[error("lane {lane} takes a value from lane {from}, which does not take part")]
    AbsentLane {
        /// The lane that takes.
        lane: u32,
        /// The lane taken from.
        from: u32,
    },
    /// A factor of a product of matrices that has more bits than its type.
    #[error("{bits:#010x} is no TF32 number: its low 13 bits are not zero, and a device drops them")]
    NotTf32 {
        /// Its bits.
        bits: u32,
    },
    /// A kernel that may begin before the one before it is done, and did not wait for it.
    #[error("{what} before `griddepcontrol.wait`, and the kernel before may not be done")]
    BeforeWait {
        /// What it did.
        what: &'static str,
    },
    /// A warp that does not come to its end.
    #[error("the warp has executed {executed} instructions without coming to an end")]
    Endless {
        /// How many.
        executed: u64,
    },
}

/// A [`Violation`], and where it was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel}, line {line}, block {block}, thread {thread}: `{text}`: {what}")]
pub struct Fault {
    /// The kernel.
    pub kernel: String,
    /// The line in the module's text, from 1.
    pub line: u32,
    /// The instruction.
    pub text: String,
    /// The block.
    pub block: u32,
    /// The thread in the block.
    pub thread: u32,
    /// What it did.
    pub what: Violation,
}
