//! The passes that pack a payload's codes, and those that unpack them, for who runs passes in sessions of their own.

use super::passes::Layout;
use super::payload::check;
use crate::error::Error;
use crate::plan::{Limits, Pass, Sizes};
use crate::wire::{Entropy, Header};

/// How the codes of payloads with one header are packed in a session, and unpacked: what
/// [`Device::pack`](crate::Device::pack) and [`Device::unpack`](crate::Device::unpack) run on a GPU.
///
/// The codes of fixed width lie in the buffer [`Role::Codes`](crate::session::Role::Codes), where the passes of an
/// [`EncodePlan`](crate::EncodePlan) leave them and those of a [`DecodePlan`](crate::DecodePlan) for one payload read
/// them. The packed ones, with their table, lie in [`Role::Values`](crate::session::Role::Values). The CPU packs
/// without passes, and refuses these.
///
/// ```
/// use gradwire::plan::Limits;
/// use gradwire::{Codec, Dtype, Entropy, Packing, Qsgd};
/// let plan = Qsgd::bits(4).plan(100_000, Dtype::F32)?;
/// let packing = Packing::new(plan.header(), Entropy::Elias, &Limits::NONE)?;
/// let room = plan.sizes().max(packing.sizes()); // of a session that encodes and packs
/// assert!(room.of(gradwire::session::Role::Values) >= 100_000 / 8);
/// assert!(packing.pack().iter().all(gradwire::plan::Pass::is_trusting));
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Packing {
    pack: Vec<Pass>,
    unpack: Vec<Pass>,
    sizes: Sizes,
}

impl Packing {
    /// For codes of payloads with this header, packed or not, that are packed so.
    ///
    /// # Errors
    /// [`Error::NotPacked`] for codes that cannot be packed so; [`Error::Limit`] if the codes, which are one
    /// binding, may not fit one of a device with these limits.
    pub fn new(header: &Header, entropy: Entropy, limits: &Limits) -> Result<Self, Error> {
        check(header, entropy)?;
        if header.elements() == 0 || entropy == Entropy::None {
            return Ok(Self { pack: Vec::new(), unpack: Vec::new(), sizes: Sizes::default() });
        }
        // How many words there are is known only once they are made, so there is room for the most.
        let layout = Layout::new(&header.fixed(), entropy);
        let (pack, unpack) = (layout.pack().to_vec(), layout.unpack().to_vec());
        limits.check(&pack)?;
        limits.check(&unpack)?;
        Ok(Self { pack, unpack, sizes: layout.sizes() })
    }

    /// Codes to packed ones, in order. The first word of [`Role::Status`](crate::session::Role::Status) becomes the
    /// number of words after the table.
    pub fn pack(&self) -> &[Pass] {
        &self.pack
    }

    /// Packed codes to codes, in order. Their table is taken on trust: a session's is what [`Packing::pack`] left
    /// there, or that of a payload that was read, and so checked.
    pub fn unpack(&self) -> &[Pass] {
        &self.unpack
    }

    /// Bytes of each buffer of a session that both run in; of packed codes, the most that there may be.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }
}
