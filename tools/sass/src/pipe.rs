//! Which unit of a multiprocessor executes an instruction.

use super::inst::Inst;

/// A unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pipe {
    /// Sums, logic, shifts, comparisons of integers and floats: 16 lanes of a scheduler.
    Integer,
    /// Products of integers, halves: the half of the multiply-add pipe that has both, 16 lanes.
    MultiplyAdd,
    /// Sums and products of floats: either half of the multiply-add pipe.
    Float,
    /// Reciprocals, conversions, counts of bits: 4 lanes.
    Special,
    /// binary64: 16 lanes.
    Double,
    /// Tensor cores.
    Matrix,
    /// Shuffles.
    Shuffle,
    /// Global and shared memory, constants, special registers.
    Memory,
    /// What the warp does once for all lanes, and votes.
    Uniform,
    /// Branches, barriers.
    Control,
}

/// All of them, in the page's order.
pub(super) const PIPES: [Pipe; 10] = [
    Pipe::Integer,
    Pipe::MultiplyAdd,
    Pipe::Float,
    Pipe::Special,
    Pipe::Double,
    Pipe::Matrix,
    Pipe::Shuffle,
    Pipe::Memory,
    Pipe::Uniform,
    Pipe::Control,
];

impl Pipe {
    /// Where an instruction goes.
    pub(super) fn of(inst: &Inst) -> Self {
        match inst.name.as_str() {
            "IMAD" | "HFMA2" | "HADD2" | "HMUL2" | "IDP" => Self::MultiplyAdd,
            "FADD" | "FMUL" | "FFMA" => Self::Float,
            "MUFU" | "F2I" | "I2F" | "F2F" | "POPC" | "FLO" | "FCHK" | "BREV" => Self::Special,
            "DADD" | "DMUL" | "DFMA" | "DSETP" => Self::Double,
            "HMMA" => Self::Matrix,
            "SHFL" => Self::Shuffle,
            "LDG" | "STG" | "LDS" | "STS" | "LD" | "ST" | "LDC" | "S2R" | "S2UR" | "ATOMG" | "ATOMS" | "REDG"
            | "RED" | "ATOM" | "MEMBAR" | "CCTL" | "ERRBAR" | "CGAERRBAR" | "LDL" | "STL" => Self::Memory,
            "BRA" | "BRX" | "BRXU" | "CALL" | "RET" | "EXIT" | "BSSY" | "BSYNC" | "BREAK" | "WARPSYNC" | "BAR"
            | "NOP" | "YIELD" | "ENDCOLLECTIVE" => Self::Control,
            "R2UR" | "REDUX" | "VOTEU" => Self::Uniform,
            name if name.starts_with('U') => Self::Uniform,
            _ => Self::Integer,
        }
    }

    /// Its name in a table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::MultiplyAdd => "multiply-add",
            Self::Float => "float",
            Self::Special => "special",
            Self::Double => "double",
            Self::Matrix => "matrix",
            Self::Shuffle => "shuffle",
            Self::Memory => "memory",
            Self::Uniform => "uniform",
            Self::Control => "control",
        }
    }
}
