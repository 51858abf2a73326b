//! The settings that bucketed quantizers share.

use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite, Scale, omega};
use crate::wire::{Bucket, CodecId, Entropy, Header, MAX_ELEMENTS};

/// The setters that every bucketed quantizer has; what the whole tensor costs is its own.
macro_rules! bucketed_settings {
    ($whole:literal) => {
        /// Buckets of this many elements: a power of two from 32 to 8192.
        pub const fn bucket(mut self, elements: usize) -> Self {
            self.common.bucket = Some(elements);
            self
        }

        #[doc = $whole]
        pub const fn whole_tensor(mut self) -> Self {
            self.common.bucket = None;
            self
        }

        /// What to do with NaN and infinity.
        pub const fn non_finite(mut self, policy: NonFinite) -> Self {
            self.common.non_finite = policy;
            self
        }
    };
}
pub(super) use bucketed_settings;

/// The settings that every bucketed quantizer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucketed {
    pub(crate) codec: CodecId,
    pub(crate) bits: u32,
    pub(crate) levels: Option<u32>,
    /// As asked, so that an error can say it; `None` is the whole tensor.
    pub(crate) bucket: Option<usize>,
    pub(crate) scaled: bool,
    pub(crate) non_finite: NonFinite,
}

impl Bucketed {
    pub(crate) const fn new(codec: CodecId, bits: u32) -> Self {
        Self { codec, bits, levels: None, bucket: Some(512), scaled: false, non_finite: NonFinite::Propagate }
    }

    /// `levels` levels on each side of zero, in the narrowest codes that hold them and their sign. Of quantiles,
    /// `levels` on both sides together.
    pub(crate) const fn of_levels(mut self, levels: u32) -> Self {
        self.bits = match 33 - levels.leading_zeros() {
            width if matches!(self.codec, CodecId::Quantile) => width.saturating_sub(2),
            0..=2 => 2,
            width @ 3..=8 => width,
            _ => 16,
        };
        self.levels = Some(levels);
        self
    }

    pub(crate) fn bucket(&self) -> Result<Bucket, Error> {
        let [least, most] = self.codec.bucket_log2s().map(|log2| 1 << log2);
        match self.bucket {
            None if self.codec.has_whole_tensors() => Ok(Bucket::Whole),
            Some(size) if size.is_power_of_two() && (least..=most).contains(&size) => Ok(Bucket::Of(size as u32)),
            got if self.codec == CodecId::Quantile => Err(Error::SortedBucket { got }),
            None => Err(Error::WholeTensor { codec: self.codec.name() }),
            got => Err(Error::Bucket { got: got.unwrap_or_default() }),
        }
    }

    /// The plan of `n` elements, all settings checked: of random draws, without feedback.
    pub(crate) fn plan(&self, n: usize, dtype: Dtype, l2: bool) -> Result<EncodePlan, Error> {
        let header = self.header(n, dtype, l2)?;
        let omega = omega(header.codec, header.bucket.elements(header.n), header.levels);
        let non_finite = self.non_finite;
        Ok(EncodePlan {
            header,
            entropy: Entropy::None,
            nearest: false,
            scale: Scale::Own,
            feedback: false,
            omega,
            non_finite,
        })
    }

    /// The header of a payload of `n` elements, all settings checked.
    fn header(&self, n: usize, dtype: Dtype, l2: bool) -> Result<Header, Error> {
        let (codec, bits) = (self.codec.name(), self.bits);
        if !self.codec.packs(bits) {
            return Err(Error::Bits { codec, allowed: self.codec.allowed_widths(), got: bits });
        }
        let max = self.codec.max_levels(bits);
        let levels = self.levels.unwrap_or(max);
        if !self.codec.has_levels(bits, levels) {
            return Err(Error::Levels { codec, bits, max, got: levels });
        }
        let bucket = self.bucket()?;
        if n as u64 > MAX_ELEMENTS {
            return Err(Error::TooLong { got: n as u64 });
        }
        Ok(Header {
            codec: self.codec,
            bits,
            levels,
            bucket,
            l2,
            scaled: self.scaled,
            dtype,
            n: n as u64,
            entropy: Entropy::None,
            words: 0,
        })
    }
}
