//! One file per codec: validated parameters, and the plan of its passes.

pub(crate) mod drive;
pub(crate) mod eden;
pub(crate) mod estimate;
pub(crate) mod float;
pub(crate) mod natural;
pub(crate) mod onebit;
pub(crate) mod powersgd;
pub(crate) mod qsgd;
pub(crate) mod quantile;
pub(crate) mod quantizer;
pub(crate) mod sign;
pub(crate) mod ternary;
pub(crate) mod topk;
pub(crate) mod tree;
pub(crate) mod uniform;

pub use self::quantizer::Quantizer;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite, Scale, omega};
use crate::wire::{Bucket, CodecId, Entropy, Header, MAX_ELEMENTS};

/// Hands the quantizers to a macro: file, type, and word in a text. One that is not here is of no recipe.
macro_rules! quantizers {
    ($then:ident) => {
        $then! {
            /// QSGD.
            qsgd, Qsgd, "qsgd";
            /// Uniform, between minimum and maximum.
            uniform, Uniform, "uniform";
            /// 1-bit SGD.
            onebit, OneBit, "onebit";
            /// A cast to a small floating-point format.
            float, Float, "float";
            /// Signs with a scale.
            sign, Sign, "sign";
            /// Ternary codes.
            ternary, Ternary, "ternary";
            /// A dynamic tree.
            tree, Tree, "tree";
            /// Powers of two.
            natural, Natural, "natural";
            /// Signs with the scale of DRIVE.
            drive, Drive, "drive";
            /// Centroids of a normal distribution with the scale of EDEN.
            eden, Eden, "eden";
            /// Quantiles.
            quantile, Quantile, "quantile";
        }
    };
}
pub(crate) use quantizers;

macro_rules! shown {
    ($($(#[$doc:meta])* $file:ident, $codec:ident, $word:literal;)+) => {
        $(pub use self::$file::$codec;)+
    };
}
quantizers!(shown);

/// A compression codec: validated parameters that make plans.
pub trait Codec {
    /// The plan that encodes `n` elements of this type.
    ///
    /// # Errors
    /// The setting that is out of range ([`Error::Bits`], [`Error::Levels`], [`Error::Bucket`]), or [`Error::TooLong`].
    fn plan(&self, n: usize, dtype: Dtype) -> Result<EncodePlan, Error>;
}

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
use bucketed_settings;

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

    /// So many levels on each side of zero, in the narrowest codes that hold them and their sign; of quantiles, so many
    /// of both.
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

/// A setting that is a number: its name in a text, what it may be, and where it is.
pub(crate) type Number<'s> = (&'static str, &'static str, &'s mut Option<f64>);

/// A bucketed quantizer as a stage of a recipe.
pub(crate) trait Stage: Codec + Copy {
    /// What it is where its word stands alone.
    const PLAIN: Self;
    /// What may be set in a text: bits, levels, bucket, contractive, and flags of its own.
    const SETTINGS: &'static [&'static str];
    /// Those of them that name a format, of which one may stand.
    const FORMATS: &'static [&'static str] = &[];

    /// The settings that it shares with others.
    fn common(&mut self) -> &mut Bucketed;

    /// The name of its format, where it has one of several.
    fn format(&self) -> Option<&'static str> {
        None
    }

    /// Takes a word that sets more than a flag, and says whether it is one.
    fn take(&mut self, _word: &str) -> bool {
        false
    }

    /// The bucket that it has where none is set.
    fn usual_bucket(&self) -> Option<usize> {
        { Self::PLAIN }.common().bucket
    }

    /// Its own flags, by their names in a text, and whether they are set.
    fn flags(&mut self) -> Vec<(&'static str, &mut bool)> {
        Vec::new()
    }

    /// Its own numbers.
    fn numbers(&mut self) -> Vec<Number<'_>> {
        Vec::new()
    }

    /// Whether error feedback belongs to it, unless it is told otherwise.
    fn brings_feedback(&self) -> bool {
        false
    }

    /// Whether error feedback is on.
    fn has_feedback(&self) -> bool {
        false
    }

    /// How codes are packed.
    fn entropy(&self) -> Entropy {
        Entropy::None
    }

    /// With its codes packed so, where they can be.
    fn packed(self, _: Entropy) -> Self {
        self
    }

    /// Without feedback and packing, which are stages of their own.
    fn alone(self) -> Self {
        self
    }

    /// The settings as they stand in a text: each that differs from what the codec has without it, and the width.
    fn words(mut self) -> Vec<String> {
        let bucket = self.usual_bucket();
        let common = *self.common();
        let mut words = Vec::new();
        match common.levels {
            Some(levels) if Self::SETTINGS.contains(&"levels") => words.push(format!("levels={levels}")),
            _ if Self::SETTINGS.contains(&"bits") => words.push(format!("bits={}", common.bits)),
            _ => words.extend(self.format().map(Into::into)),
        }
        if common.bucket != bucket {
            words.push(common.bucket.map_or("bucket=whole".into(), |elements| format!("bucket={elements}")));
        }
        words.extend(common.scaled.then(|| "contractive".into()));
        let numbers = self.numbers();
        words.extend(numbers.into_iter().filter_map(|(name, _, set)| set.map(|number| format!("{name}={number}"))));
        words.extend(self.flags().into_iter().filter(|(_, set)| **set).map(|(name, _)| name.into()));
        words
    }
}
