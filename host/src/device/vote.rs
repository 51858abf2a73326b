//! Votes of payloads on any device.

use gradwire_kernels::arith::vote::MOST_VOTERS;

use crate::device::Device;
use crate::embed::{HostSlice, Votes, VotesBuffers};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::view::AsPayload;
use crate::wire::CodecId;

impl Device {
    /// The majority of the signs of payloads, element by element: 1 where more than half of the payloads have an
    /// element above zero, -1 where fewer have, and 0 where half of them have. Scales do not count.
    ///
    /// Source: Bernstein, Wang, Azizzadenesheli and Anandkumar, "signSGD: Compressed optimisation for non-convex
    /// problems", ICML 2018, algorithm 3; ties are not defined there. An element of a bucket that holds a NaN or an
    /// infinity in any payload becomes NaN. Without payloads the output becomes zeros. The order of payloads does not
    /// matter.
    ///
    /// ```
    /// use gradwire::{Device, Seed, Sign};
    /// let device = Device::cpu();
    /// let of = |x: [f32; 3]| device.encode(&Sign::unit(), &x, Seed::new(7));
    /// let payloads = [of([1.0, -2.0, 3.0])?, of([1.0, -1.0, -9.0])?, of([-8.0, -1.0, 0.1])?, of([-8.0, -1.0, 0.1])?];
    /// let mut votes = [0.0; 3];
    /// device.vote(&payloads, &mut votes)?;
    /// assert_eq!(votes, [0.0, -1.0, 1.0]);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Mixed`] if the payloads are not of one codec, setting and length; [`Error::Setting`] for more than
    /// 65535 of them, or of another codec than [`Sign`](crate::Sign); [`Error::Length`] for an output of another
    /// length; as [`Device::decode_into`] where the device fails. The output is then as it was.
    pub fn vote(&self, payloads: &[impl AsPayload], output: &mut [f32]) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        let payloads: Vec<_> = payloads.iter().map(AsPayload::as_payload).collect();
        let Some(first) = payloads.first() else {
            output.fill(0.0);
            return Ok(());
        };
        let header = *first.header();
        for (index, payload) in payloads.iter().enumerate() {
            if let Some(what) = header.difference(payload.header()) {
                return Err(Error::Mixed { index, what });
            }
        }
        if header.codec() != CodecId::Sign {
            let (what, got) = ("the codec's tag of payloads that vote", header.codec().tag().into());
            return Err(Error::Setting { what, got, allowed: "that of signs, 6" });
        }
        if payloads.len() > MOST_VOTERS as usize {
            let what = "the number of payloads that vote";
            return Err(Error::Setting { what, got: payloads.len() as f64, allowed: "65535 at most" });
        }
        Error::expect_len("output", "elements", output.len(), header.n)?;
        let codes: Vec<&[u8]> = payloads.iter().map(|payload| payload.codes()).collect();
        let work = Votes { payloads: payloads.len() as u32, elements: header.n };
        let codes = HostSlice::parts(work.parts(&codes, &self.limits())?);
        self.run(work, VotesBuffers { codes, output: HostSlice::floats_out(output) })?;
        let bucket = header.bucket.elements(header.n).max(1) as usize;
        for payload in &payloads {
            for (output, scale) in output.chunks_mut(bucket).zip(payload.scalars().chunks_exact(4)) {
                // What no encoder writes reads as a NaN too, as it is decoded.
                if u32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]) >= f32::INFINITY.to_bits() {
                    output.fill(f32::from_bits(0x7fc0_0000));
                }
            }
        }
        Ok(())
    }
}
