//! Packing a payload on any device.

use super::engine::{pack, unpack};
use crate::device::Device;
use crate::error::Error;
use crate::view::AsPayload;
use crate::wire::Payload;

impl Device {
    /// The payload with its codes packed: a level `l` as the Elias gamma code of l + 1, instead of a fixed width.
    ///
    /// Small levels, which a gradient has most of beside a norm of the whole bucket, take fewer bits. The scalars stay as they are.
    /// What comes out decodes to the same values on every device, but that a level of zero has no sign: it decodes to +0. A payload
    /// that is packed already comes out as it is.
    ///
    /// Source: Elias, "Universal codeword sets and representations of the integers", 1975; behind QSGD, Alistarh et al., NIPS 2017,
    /// section 3.1. [`Header::elias_words`](crate::Header::elias_words) says how long the codes are: at most
    /// twice as long as before, and a byte per 256 elements.
    ///
    /// ```
    /// use gradwire::{Device, Qsgd, Seed};
    /// let device = Device::cpu();
    /// let gradient: Vec<f32> = (0..4096).map(|i| (i as f32).sin().powi(9)).collect();
    /// let sent = device.encode(&Qsgd::bits(4).l2(), &gradient, Seed::new(1))?;
    /// let packed = device.pack(&sent)?;
    /// assert!(packed.as_bytes().len() < sent.as_bytes().len() * 2 / 3);
    /// assert_eq!(device.decode(&packed)?, device.decode(&sent)?); // -0 and +0 are equal
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotPacked`] for a payload of another codec than QSGD and ternary codes; [`Error::Limit`] where the codes do not fit one binding of the
    /// device; [`Error::Backend`] where it fails.
    pub fn pack(&self, payload: &(impl AsPayload + ?Sized)) -> Result<Payload, Error> {
        pack(self.engine(), &payload.as_payload())
    }

    /// The payload with codes of fixed width, which every decode of this library reads, in a caller's memory too. One that is not
    /// packed comes out as it is.
    ///
    /// ```
    /// use gradwire::{Device, Qsgd, Seed};
    /// let device = Device::cpu();
    /// let packed = device.encode(&Qsgd::bits(4).elias(), &[0.5f32; 1000], Seed::new(1))?;
    /// let fixed = device.unpack(&packed)?;
    /// assert_eq!(fixed.header().elias_words(), None);
    /// assert_eq!(device.pack(&fixed)?, packed);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Limit`] and [`Error::Backend`], as [`Device::pack`].
    pub fn unpack(&self, payload: &(impl AsPayload + ?Sized)) -> Result<Payload, Error> {
        unpack(self.engine(), &payload.as_payload())
    }
}
