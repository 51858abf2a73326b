//! The passes that pack codes, and those that unpack them. Pure.

use gradwire_kernels::arith::elias::BLOCK_UNITS;
use gradwire_kernels::arith::pack::UNIT;
use gradwire_kernels::params::{EntropyParams, THREADS};

use crate::plan::{Bindings, Kernel, Params, Pass, STATUS_BYTES, Sizes, Span};
use crate::wire::{Entropy, Header};

/// Where the packed codes and those of fixed width lie, and what lies between passes.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    entropy: Entropy,
    params: EntropyParams,
    groups: u32,
    bindings: Bindings,
}

impl Layout {
    /// For codes of a payload's header, which may be packed or not; there is at least one code, and a way to pack it.
    pub(crate) fn new(header: &Header, entropy: Entropy) -> Self {
        let (n, bits) = (header.elements(), header.bits());
        let (units, table) = (entropy.units(n), entropy.table_bytes(n));
        // 2^23 units at most.
        let groups = match entropy {
            Entropy::Sparse => units as u32,
            _ => units.div_ceil(BLOCK_UNITS.into()) as u32,
        };
        let fixed = n.div_ceil(UNIT as u64) as u32;
        let params = EntropyParams { units: units as u32, bits, table: (table / 4) as u32, sums: groups, fixed };
        let packed = match header.is_packed() {
            true => header.code_bytes(),
            false => table + 4 * entropy.most_words(n, bits),
        };
        let span = |bytes| Span { offset: 0, bytes };
        let bindings = Bindings {
            codes: span(header.fixed().code_bytes()),
            values: span(packed),
            workspace: span(4 * u64::from(groups)),
            status: span(STATUS_BYTES),
            ..Bindings::default()
        };
        Self { entropy, params, groups, bindings }
    }

    /// Bytes of each buffer of a session.
    pub(crate) fn sizes(&self) -> Sizes {
        let b = &self.bindings;
        Sizes([0, 0, 0, b.codes.bytes, b.workspace.bytes, b.status.bytes, 0, 0, b.values.bytes])
    }

    /// Codes to packed ones; the first word of the status becomes the number of words after the table.
    pub(crate) fn pack(&self) -> [Pass; 3] {
        let [measure, write] = match self.entropy {
            Entropy::Base3 => [Kernel::Base3Measure, Kernel::Base3Write],
            Entropy::Delta => [Kernel::DeltaMeasure, Kernel::DeltaWrite],
            Entropy::Sparse => [Kernel::PlacesMeasure, Kernel::PlacesWrite],
            Entropy::None | Entropy::Elias => [Kernel::EliasMeasure, Kernel::EliasWrite],
        };
        [self.pass(measure), self.offsets(), self.pass(write)]
    }

    /// Packed codes to codes.
    pub(crate) fn unpack(&self) -> [Pass; 3] {
        let read = match self.entropy {
            Entropy::Base3 => Kernel::Base3Read,
            Entropy::Delta => Kernel::DeltaRead,
            Entropy::Sparse => Kernel::PlacesRead,
            Entropy::None | Entropy::Elias => Kernel::EliasRead,
        };
        let sums = match self.entropy {
            Entropy::Sparse => Pass { groups: self.groups.div_ceil(THREADS), ..self.pass(Kernel::PlacesSums) },
            _ => self.pass(Kernel::EntropySums),
        };
        [sums, self.offsets(), self.pass(read)]
    }

    fn offsets(&self) -> Pass {
        Pass { groups: 1, ..self.pass(Kernel::EntropyOffsets) }
    }

    fn pass(&self, kernel: Kernel) -> Pass {
        Pass { kernel, params: Params::Entropy(self.params), bindings: self.bindings, groups: self.groups }
    }
}
