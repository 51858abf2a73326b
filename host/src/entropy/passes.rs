//! The passes that pack codes, and those that unpack them. Pure.

use gradwire_kernels::arith::elias::BLOCK_UNITS;
use gradwire_kernels::params::EliasParams;

use super::table::{most_words, table_bytes, units};
use crate::plan::{Bindings, Kernel, Params, Pass, STATUS_BYTES, Sizes, Span};
use crate::wire::Header;

/// Where the packed codes and those of fixed width lie, and what lies between passes.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    params: EliasParams,
    groups: u32,
    bindings: Bindings,
}

impl Layout {
    /// For codes of a payload's header, which may be packed or not; there is at least one code.
    pub(super) fn new(header: &Header) -> Self {
        let (n, bits) = (header.elements(), header.bits());
        // 2^23 units at most.
        let groups = units(n).div_ceil(BLOCK_UNITS.into()) as u32;
        let params = EliasParams { units: units(n) as u32, bits, table: (table_bytes(n) / 4) as u32, sums: groups };
        let packed = match header.elias_words() {
            Some(_) => header.code_bytes(),
            None => table_bytes(n) + 4 * most_words(n, bits),
        };
        let span = |bytes| Span { offset: 0, bytes };
        let bindings = Bindings {
            codes: span(header.fixed().code_bytes()),
            values: span(packed),
            workspace: span(4 * u64::from(groups)),
            status: span(STATUS_BYTES),
            ..Bindings::default()
        };
        Self { params, groups, bindings }
    }

    /// Bytes of each buffer of a session.
    pub(super) fn sizes(&self) -> Sizes {
        let b = &self.bindings;
        Sizes([0, 0, 0, b.codes.bytes, b.workspace.bytes, b.status.bytes, 0, 0, b.values.bytes])
    }

    /// Codes to packed ones; the first word of the status becomes the number of words behind the table.
    pub(super) fn pack(&self) -> [Pass; 3] {
        [self.pass(Kernel::EliasMeasure), self.offsets(), self.pass(Kernel::EliasWrite)]
    }

    /// Packed codes to codes.
    pub(super) fn unpack(&self) -> [Pass; 3] {
        [self.pass(Kernel::EliasSums), self.offsets(), self.pass(Kernel::EliasRead)]
    }

    fn offsets(&self) -> Pass {
        Pass { groups: 1, ..self.pass(Kernel::EliasOffsets) }
    }

    fn pass(&self, kernel: Kernel) -> Pass {
        Pass { kernel, params: Params::Elias(self.params), bindings: self.bindings, groups: self.groups }
    }
}
