//! Inputs and settings, each with its reason.

use gradwire::Seed;

use crate::formula::CODECS;
pub use crate::formula::{Kind, Quantizer};
use crate::oracle::Setting;

/// Lengths around every boundary of the format.
pub const LENGTHS: [(usize, &str); 16] = [
    (0, "empty"),
    (1, "one element"),
    (31, "a row less one"),
    (32, "a row, and the smallest bucket"),
    (33, "a row and one"),
    (127, "a small bucket less one"),
    (129, "a small bucket and one"),
    (255, "a unit less one"),
    (256, "a unit"),
    (257, "a unit and one"),
    (511, "the default bucket less one"),
    (513, "the default bucket and one"),
    (5000, "several buckets and a tail"),
    (8193, "the largest bucket and one"),
    (65535, "a CPU task less one"),
    (65537, "a CPU task and one"),
];

/// A setting, as the product and as the oracle take it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Which formula.
    pub kind: Kind,
    /// Bits of a code.
    pub bits: u32,
    /// Levels.
    pub levels: u32,
    /// Elements of a bucket; `None` for the whole tensor.
    pub bucket: Option<usize>,
    /// Whether the contraction is sent.
    pub contractive: bool,
}

impl Case {
    /// All levels of a width; of floats E4M3 and bf16.
    pub fn new(kind: Kind, bits: u32, bucket: Option<usize>) -> Self {
        let levels = kind.formula().usual_levels(bits);
        Self { kind, bits, levels, bucket, contractive: false }
    }

    /// The product's codec.
    pub fn codec(&self) -> Quantizer {
        self.kind.formula().product(self)
    }

    /// The bound on the variance factor, from the formulas of the codecs' documentation.
    pub fn omega(&self, n: usize) -> f64 {
        let b = self.bucket.unwrap_or(n).min(n) as f64;
        self.kind.formula().omega(b, self.levels.into())
    }

    /// How much of a gradient the contraction takes off its square at least, in expectation: what feedback's lemma asks
    /// for.
    pub fn delta(&self, n: usize) -> f64 {
        self.kind.formula().delta(self.omega(n))
    }

    /// The oracle's setting for a tensor of `n`.
    pub fn oracle(&self, n: usize, run: u64, step: u64, tensor: u32) -> Setting {
        let beta = if self.contractive { (1.0 / (1.0 + self.omega(n))) as f32 } else { 1.0 };
        Setting {
            kind: self.kind,
            bits: self.bits,
            levels: self.levels,
            bucket: self.bucket,
            beta,
            seed: (run, step, tensor),
        }
    }

    /// Codec, norm and rounding, as the golden vectors have them.
    pub fn words(&self) -> (&'static str, Option<&'static str>, Option<&'static str>) {
        let [norm, rounding] = self.kind.formula().words();
        (self.kind.codec().file(), norm, rounding)
    }

    /// The formula that these words name.
    pub(crate) fn kind_of(codec: &str, norm: Option<&str>, rounding: Option<&str>) -> Result<Kind, String> {
        let named = |kind: &&Kind| kind.codec().file() == codec && kind.formula().words() == [norm, rounding];
        let kind = Kind::ALL.iter().find(named).copied();
        kind.ok_or_else(|| format!("codec, norm and rounding {:?} are no setting", (codec, norm, rounding)))
    }

    /// The setting in a few words.
    pub fn label(&self) -> String {
        let bucket = self.bucket.map_or("whole".to_owned(), |b| b.to_string());
        let kind = self.kind.name();
        let scaled = if self.contractive { ", contractive" } else { "" };
        format!("{kind} {} bit, {} levels, bucket {bucket}{scaled}", self.bits, self.levels)
    }
}

/// Of every codec: every code width with the default bucket, every bucket with one width, presets, odd level counts,
/// contractions.
pub fn settings() -> Vec<Case> {
    CODECS.iter().flat_map(|tests| (tests.settings)()).collect()
}

/// A seed that uses every word of the address.
pub fn seed() -> Seed {
    Seed::new(SEED.0).step(SEED.1).tensor(SEED.2)
}

/// The words of [`seed`].
pub const SEED: (u64, u64, u32) = (0x0123_4567_89ab_cdef, 0x1_0000_0007, 0xfeed_f00d);

/// A small generator for inputs, apart from the one under test: SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Uniform over (0, 1).
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / 9007199254740992.0
    }

    /// Normal, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (2.0 * std::f64::consts::PI * self.unit()).cos()
    }
}

/// Normal values of a gradient's usual size.
pub fn normal(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n).map(|_| (random.normal() * 0.01) as f32).collect()
}

/// A named way to fill a tensor.
pub type Fill = (&'static str, fn(usize) -> Vec<f32>);

/// The edge cases of the house plan, as inputs of any length.
pub const FILLS: [Fill; 16] = [
    ("normal", |n| normal(n, 1)),
    ("all zero", |n| vec![0.0; n]),
    ("negative zero", |n| vec![-0.0; n]),
    ("subnormal", |n| (0..n as u32).map(|i| f32::from_bits((i % 5000) | ((i & 1) << 31))).collect()),
    ("smallest subnormal", |n| (0..n).map(|i| if i % 7 == 0 { 1e-45 } else { 0.0 }).collect()),
    ("one-hot", |n| (0..n).map(|i| if i == n / 2 { -3.5 } else { 0.0 }).collect()),
    ("constant", |n| vec![0.1; n]),
    ("plus and minus the largest", |n| (0..n).map(|i| if i % 2 == 0 { f32::MAX } else { f32::MIN }).collect()),
    ("largest beside smallest", |n| (0..n).map(|i| if i % 3 == 0 { f32::MAX } else { 1e-45 }).collect()),
    ("every exponent", |n| {
        let mut r = Random(2);
        (0..n)
            .map(|_| f32::from_bits(r.bits() as u32 & 0xbfff_ffff))
            .map(|v| if v.is_finite() { v } else { 1.0 })
            .collect()
    }),
    ("around the lift", |n| {
        let mut r = Random(3);
        (0..n).map(|i| (r.normal() * 2f64.powi(-60 - (i / 512 % 5) as i32 + 2)) as f32).collect()
    }),
    ("ties at half a level", |n| (0..n).map(|i| (i % 31) as f32 / 2.0 - 7.0).collect()),
    ("a large offset", |n| normal(n, 4).into_iter().map(|v| 1000.0 + v).collect()),
    ("a NaN in one bucket", |n| spoil(normal(n, 5), f32::NAN)),
    ("a signalling NaN", |n| spoil(normal(n, 6), f32::from_bits(0xff80_0001))),
    ("an infinity", |n| spoil(normal(n, 7), f32::NEG_INFINITY)),
];

fn spoil(mut x: Vec<f32>, with: f32) -> Vec<f32> {
    let n = x.len();
    if let Some(v) = x.get_mut(n / 3) {
        *v = with;
    }
    x
}
