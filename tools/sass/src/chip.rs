//! What a multiprocessor holds, and what the replay takes it to do.

/// What a multiprocessor of a compute capability holds.
///
/// From the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and from the occupancy
/// calculator's allocation units (NVIDIA's `cuda_occupancy.h`): registers are given to warps in pieces of 256, warps
/// are placed on four sub-partitions (two on sm_60), shared memory is given in pieces of 256 bytes, or of 128 from
/// sm_80 on, where the system keeps 1 KB of each block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Warps at a time.
    pub(super) warps: u32,
    /// Blocks at a time.
    blocks: u32,
    /// Bytes of shared memory for all blocks.
    shared: u32,
    /// Bytes in which shared memory is given.
    shared_unit: u32,
    /// Bytes of each block that the system takes.
    reserved: u32,
    /// Sub-partitions, each of which has its part of the registers.
    parts: u32,
}

/// Registers of a multiprocessor of every capability from sm_60 on.
const REGISTERS: u32 = 65536;
/// Registers in which a warp's are given.
const REGISTER_UNIT: u32 = 256;

/// The capabilities that the page speaks of.
pub(super) const TARGETS: [u32; 5] = [60, 70, 80, 90, 120];

/// The limits of one of [`TARGETS`]; none for another.
pub(super) fn limits(sm: u32) -> Option<Limits> {
    let kilobytes = 1024u32;
    let of = |warps, blocks, shared: u32, shared_unit, reserved, parts| {
        Some(Limits { warps, blocks, shared: kilobytes * shared, shared_unit, reserved, parts })
    };
    match sm {
        60 => of(64, 32, 64, 256, 0, 2),
        70 => of(64, 32, 96, 256, 0, 4),
        80 => of(64, 32, 164, 128, 1024, 4),
        90 => of(64, 32, 228, 128, 1024, 4),
        120 => of(48, 24, 100, 128, 1024, 4),
        _ => None,
    }
}

impl Limits {
    /// Blocks that are on a multiprocessor together.
    ///
    /// `registers`: of a thread. `shared`: bytes that the kernel declares. `threads`: of a block.
    pub(super) fn resident(&self, registers: u32, shared: u32, threads: u32) -> u32 {
        let warps = threads.div_ceil(32).max(1);
        let of_warp = (registers.max(1) * 32).next_multiple_of(REGISTER_UNIT);
        // A warp's registers lie in one part.
        let by_registers = REGISTERS / self.parts / of_warp * self.parts / warps;
        let of_block = (shared + self.reserved).next_multiple_of(self.shared_unit);
        let by_shared = self.shared.checked_div(of_block).unwrap_or(u32::MAX);
        self.blocks.min(self.warps / warps).min(by_registers).min(by_shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_from_registers_and_shared_memory() {
        let hopper = limits(90).unwrap();
        for (registers, blocks) in
            [(32, 8), (40, 6), (48, 5), (56, 4), (63, 4), (64, 4), (65, 3), (80, 3), (81, 2), (128, 2), (129, 1)]
        {
            assert_eq!(hopper.resident(registers, 256, 256), blocks, "{registers} registers");
        }
        assert_eq!(hopper.resident(32, 48896, 256), 4, "shared memory limits it");
        assert_eq!(limits(120).unwrap().resident(32, 0, 256), 6, "48 warps");
        assert_eq!(limits(60).unwrap().resident(32, 48896, 256), 1);
        assert_eq!(hopper.resident(16, 0, 32), 32, "no more blocks than that");
        assert!(limits(35).is_none());
    }
}
