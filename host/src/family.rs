//! The families of codecs, as they are named where kernels are compiled beforehand.

use crate::wire::CodecId;

/// A codec, or several that share their kernels: what [`Device::warm_up`](crate::Device::warm_up) compiles beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CodecFamily {
    /// A codec that quantizes buckets: of a lone tensor and of a model's.
    Bucketed(CodecId),
    /// Top-k with its sparse payloads.
    TopK,
    /// PowerSGD.
    PowerSgd,
    /// Rotations: [`Device::rotate`](crate::Device::rotate).
    Rotation,
    /// Cosine transforms: [`Device::dct`](crate::Device::dct).
    Dct,
    /// Random-k: [`Device::encode_random`](crate::Device::encode_random).
    RandomK,
}

impl CodecFamily {
    /// Every family.
    pub const ALL: [Self; CodecId::ALL.len() + 5] = {
        let mut all = [Self::TopK; CodecId::ALL.len() + 5];
        let mut at = 0;
        while at < CodecId::ALL.len() {
            all[at] = Self::Bucketed(CodecId::ALL[at]);
            at += 1;
        }
        all[at + 1] = Self::PowerSgd;
        all[at + 2] = Self::Rotation;
        all[at + 3] = Self::RandomK;
        all[at + 4] = Self::Dct;
        all
    };
}

impl From<CodecId> for CodecFamily {
    fn from(codec: CodecId) -> Self {
        Self::Bucketed(codec)
    }
}
