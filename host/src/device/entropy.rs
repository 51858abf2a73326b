//! Packing a payload on any device.

use crate::backend::slices::{self, now};
use crate::device::Device;
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::view::AsPayload;
use crate::wire::{Entropy, Payload};

impl Device {
    /// The payload with its codes packed in one way: as Elias codes, a level `l` as the gamma or delta code of l + 1;
    /// or in base 3, five codes of 2 bits in a byte, and runs of zero bytes in one.
    ///
    /// Small levels, which a gradient has most of beside a norm of the whole bucket, take fewer bits. The scalars stay
    /// as they are. What comes out decodes to the same values on every device, but that a level of zero has no sign: it
    /// decodes to +0. A payload that is packed so already comes out as it is, and [`Entropy::None`] is
    /// [`Device::unpack`].
    ///
    /// [`Entropy`] has the sources. [`Header::packed_words`](crate::Header::packed_words) says how long the codes are.
    /// Gamma codes are at most twice as long as before, delta codes 2.5 times, and a byte per 256 elements; codes in
    /// base 3 at most 0.8 times as long, and a byte per 1280 elements, in whole units of 1280.
    ///
    /// ```
    /// use gradwire::{Device, Entropy, Qsgd, Seed};
    /// let device = Device::cpu();
    /// let gradient: Vec<f32> = (0..4096).map(|i| (i as f32).sin().powi(9)).collect();
    /// let sent = device.encode(&Qsgd::bits(4).l2(), &gradient, Seed::new(1))?;
    /// let packed = device.pack(&sent, Entropy::Elias)?;
    /// assert!(packed.as_bytes().len() < sent.as_bytes().len() * 2 / 3);
    /// assert_eq!(device.decode(&packed)?, device.decode(&sent)?); // -0 and +0 are equal
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotPacked`] for codes that cannot be packed so; [`Error::Limit`] if they do not fit one binding of
    /// the device; [`Error::Backend`] if it fails.
    pub fn pack(&self, payload: &(impl AsPayload + ?Sized), entropy: Entropy) -> Result<Payload, Error> {
        let _environment = FloatEnvironment::standard();
        now(slices::entropy::pack(self.runner(), payload.as_payload(), entropy))
    }

    /// As [`Device::pack`], without a copy if there is nothing to pack.
    pub(crate) fn packed(&self, payload: Payload, entropy: Entropy) -> Result<Payload, Error> {
        if entropy == Entropy::None { Ok(payload) } else { self.pack(&payload, entropy) }
    }

    /// The payload with codes of fixed width, which every decode of this library reads, in a caller's memory too. One
    /// that is not packed comes out as it is.
    ///
    /// ```
    /// use gradwire::{Device, Entropy, Qsgd, Seed};
    /// let device = Device::cpu();
    /// let packed = device.encode(&Qsgd::bits(4).elias(), &[0.5f32; 1000], Seed::new(1))?;
    /// let fixed = device.unpack(&packed)?;
    /// assert_eq!(fixed.header().entropy(), Entropy::None);
    /// assert_eq!(device.pack(&fixed, Entropy::Elias)?, packed);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Limit`] and [`Error::Backend`], as [`Device::pack`].
    pub fn unpack(&self, payload: &(impl AsPayload + ?Sized)) -> Result<Payload, Error> {
        let _environment = FloatEnvironment::standard();
        now(slices::entropy::unpack(self.runner(), payload.as_payload()))
    }
}
