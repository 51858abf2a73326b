//! What each kernel moves and executes for an element, counted on the PTX machine: numbers that no noise touches.

mod around;

use std::fmt::Write as _;
use std::sync::Arc;

use gradwire::backend::cuda::Cuda;
use gradwire::backend::cuda::artifacts::FAMILIES;
use gradwire::{
    Codec, Device, Drive, Dtype, Eden, Error, Float, Gradient, Natural, NonFinite, OneBit, Payload, Qsgd, Quantile,
    Sign, Ternary, Tree, Uniform,
};
use gradwire_ptx_machine::{Counts, Machine, SECTOR};
use half::bf16;

use crate::cases::{self, Quantizer};

/// Elements of each launch: 32 blocks.
pub const N: usize = 1 << 18;
/// Payloads of a sum.
pub const SUMMED: usize = 8;
/// The targets of the committed artifacts.
pub const TARGETS: [(u32, u32); 5] = [(3, 5), (6, 0), (7, 0), (8, 0), (9, 0)];

/// A PTX machine for each of [`TARGETS`], with the artifact of that target.
pub fn machines() -> impl Iterator<Item = (String, Result<Device, Error>)> {
    TARGETS.into_iter().map(|(major, minor)| {
        let cuda = Cuda::with_driver(Arc::new(Machine::new((major, minor), 1)), Some(10 * major + minor));
        (format!("sm_{major}{minor}"), cuda.map(Device::from_cuda))
    })
}

/// What a device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Encodes f32.
    EncodeF32,
    /// Encodes bf16.
    EncodeBf16,
    /// Encodes f32 and keeps a residual.
    EncodeFeedback,
    /// Decodes.
    Decode,
    /// Adds what it decodes.
    DecodeAdd,
    /// Decodes [`SUMMED`] payloads, and adds them.
    DecodeSum,
}

impl Op {
    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EncodeF32 => "encode f32",
            Self::EncodeBf16 => "encode bf16",
            Self::EncodeFeedback => "encode f32 + feedback",
            Self::Decode => "decode",
            Self::DecodeAdd => "decode-add",
            Self::DecodeSum => "sum of 8",
        }
    }
}

/// An operation with a codec.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// What is asked.
    pub op: Op,
    /// Of which codec.
    pub codec: Quantizer,
    /// The codec and its setting.
    pub label: &'static str,
    bits: u32,
    /// `None` for the whole tensor.
    bucket: Option<u32>,
}

/// The operations of the table.
#[must_use]
pub fn jobs() -> Vec<Job> {
    let q = |label, codec, bits, bucket, op| Job { op, codec: Quantizer::Qsgd(codec), label, bits, bucket };
    let u = |label, codec, bits, bucket, op| Job { op, codec: Quantizer::Uniform(codec), label, bits, bucket };
    let one = |label, codec, bucket, op| Job { op, codec: Quantizer::OneBit(codec), label, bits: 1, bucket };
    let bit = OneBit::new().without_feedback();
    let sign = |op| {
        let codec = Quantizer::Sign(Sign::new().without_feedback());
        Job { op, codec, label: "EF-SignSGD / 8192", bits: 1, bucket: Some(8192) }
    };
    let drive = |op| {
        let codec = Quantizer::Drive(Drive::new());
        Job { op, codec, label: "DRIVE / 8192", bits: 1, bucket: Some(8192) }
    };
    let eden = |op| {
        let codec = Quantizer::Eden(Eden::bits(4));
        Job { op, codec, label: "EDEN 4 bit / 8192", bits: 4, bucket: Some(8192) }
    };
    let ternary =
        |label, codec: Ternary, bucket, op| Job { op, codec: Quantizer::Ternary(codec), label, bits: 2, bucket };
    let trits = Ternary::new();
    let float = |op| {
        let codec = Quantizer::Float(Float::e4m3().scaled());
        Job { op, codec, label: "E4M3 scaled / 32", bits: 8, bucket: Some(32) }
    };
    let integers = |op| {
        let codec = Quantizer::Float(Float::int16().error_bound(1.0 / 1024.0));
        Job { op, codec, label: "int16, bounded / 8192", bits: 16, bucket: Some(8192) }
    };
    let tree = |op| {
        let codec = Quantizer::Tree(Tree::new());
        Job { op, codec, label: "dynamic tree / 512", bits: 8, bucket: Some(512) }
    };
    let quantile = |op| {
        let codec = Quantizer::Quantile(Quantile::levels(64).bucket(4096));
        Job { op, codec, label: "quantile 64 / 4096", bits: 6, bucket: Some(4096) }
    };
    let power = |label, codec, bits, op| Job { op, codec: Quantizer::Natural(codec), label, bits, bucket: Some(512) };
    use Op::{Decode, DecodeAdd, DecodeSum, EncodeBf16, EncodeF32, EncodeFeedback};
    let four = Qsgd::bits(4).bucket(512);
    let coarse = four.contractive();
    let guarded = four.non_finite(NonFinite::Error);
    vec![
        q("QSGD 2 bit / 128", Qsgd::bits(2).bucket(128), 2, Some(128), EncodeF32),
        q("QSGD 3 bit / 512", Qsgd::bits(3).bucket(512), 3, Some(512), EncodeF32),
        q("QSGD 4 bit / 512", four, 4, Some(512), EncodeF32),
        q("QSGD 4 bit / 512", four, 4, Some(512), EncodeBf16),
        q("QSGD 4 bit / 512", coarse, 4, Some(512), EncodeFeedback),
        q("QSGD 4 bit / 512, L2", four.l2(), 4, Some(512), EncodeF32),
        q("QSGD 4 bit / 512, refusing NaN", guarded, 4, Some(512), EncodeF32),
        q("QSGD 4 bit / 32", Qsgd::bits(4).bucket(32), 4, Some(32), EncodeF32),
        q("QSGD 7 bit / 8192", Qsgd::bits(7).bucket(8192), 7, Some(8192), EncodeF32),
        q("QSGD 8 bit / 512", Qsgd::bits(8).bucket(512), 8, Some(512), EncodeF32),
        q("QSGD 16 bit / 8192", Qsgd::bits(16).bucket(8192), 16, Some(8192), EncodeF32),
        q("QSGD 4 bit / whole, L2", Qsgd::bits(4).whole_tensor().l2(), 4, None, EncodeF32),
        q("QSGD 4 bit / 512", four, 4, Some(512), Decode),
        q("QSGD 4 bit / 512", four, 4, Some(512), DecodeAdd),
        q("QSGD 4 bit / 512", four, 4, Some(512), DecodeSum),
        q("QSGD 4 bit / 64", Qsgd::bits(4).bucket(64), 4, Some(64), DecodeAdd),
        q("QSGD 4 bit / 64", Qsgd::bits(4).bucket(64), 4, Some(64), DecodeSum),
        q("QSGD 8 bit / 512", Qsgd::bits(8).bucket(512), 8, Some(512), DecodeAdd),
        q("QSGD 3 bit / 32", Qsgd::bits(3).bucket(32), 3, Some(32), DecodeAdd),
        q("QSGD 4 bit / whole", Qsgd::bits(4).whole_tensor(), 4, None, DecodeAdd),
        u("uniform 1 bit / 512", Uniform::bits(1).bucket(512), 1, Some(512), EncodeF32),
        u("uniform 4 bit / 512", Uniform::bits(4).bucket(512), 4, Some(512), EncodeF32),
        u("uniform 4 bit / 512", Uniform::bits(4).bucket(512), 4, Some(512), EncodeBf16),
        u("uniform 4 bit / 512", Uniform::bits(4).bucket(512).contractive(), 4, Some(512), EncodeFeedback),
        u("uniform 4 bit / 512, nearest", Uniform::bits(4).bucket(512).nearest(), 4, Some(512), EncodeF32),
        u("uniform 8 bit / whole", Uniform::bits(8).whole_tensor(), 8, None, EncodeF32),
        u("uniform 4 bit / 512", Uniform::bits(4).bucket(512), 4, Some(512), Decode),
        u("uniform 4 bit / 512", Uniform::bits(4).bucket(512), 4, Some(512), DecodeAdd),
        u("uniform 4 bit / 512", Uniform::bits(4).bucket(512), 4, Some(512), DecodeSum),
        u("uniform 4 bit / 64", Uniform::bits(4).bucket(64), 4, Some(64), DecodeAdd),
        u("uniform 4 bit / 64", Uniform::bits(4).bucket(64), 4, Some(64), DecodeSum),
        one("1-bit SGD / 64", bit, Some(64), EncodeF32),
        one("1-bit SGD / 512", bit.bucket(512), Some(512), EncodeF32),
        one("1-bit SGD / 512", bit.bucket(512), Some(512), EncodeFeedback),
        one("1-bit SGD / whole", bit.whole_tensor(), None, EncodeF32),
        one("1-bit SGD / 64", bit, Some(64), Decode),
        one("1-bit SGD / 512", bit.bucket(512), Some(512), DecodeSum),
        sign(EncodeF32),
        sign(EncodeFeedback),
        sign(Decode),
        sign(DecodeSum),
        drive(EncodeF32),
        drive(Decode),
        drive(DecodeSum),
        eden(EncodeF32),
        eden(Decode),
        eden(DecodeSum),
        ternary("ternary / 512", trits, Some(512), EncodeF32),
        ternary("ternary / 512", trits.contractive(), Some(512), EncodeFeedback),
        ternary("ternary / 8192, clipped", trits.bucket(8192).clipped(2.5), Some(8192), EncodeF32),
        ternary("ternary / whole, clipped", trits.whole_tensor().clipped(2.5), None, EncodeF32),
        ternary("ternary / 512", trits, Some(512), Decode),
        ternary("ternary / 512", trits, Some(512), DecodeSum),
        float(EncodeF32),
        float(EncodeFeedback),
        float(Decode),
        float(DecodeSum),
        integers(EncodeF32),
        integers(EncodeFeedback),
        integers(Decode),
        tree(EncodeF32),
        tree(EncodeFeedback),
        tree(Decode),
        tree(DecodeSum),
        power("natural 8 bit / 512", Natural::compression(), 8, EncodeF32),
        power("natural 8 bit / 512", Natural::compression(), 8, EncodeFeedback),
        power("natural 4 bit / 512", Natural::bits(4), 4, EncodeF32),
        power("natural 8 bit / 512", Natural::compression(), 8, Decode),
        power("natural 8 bit / 512", Natural::compression(), 8, DecodeSum),
        quantile(EncodeF32),
        quantile(EncodeFeedback),
        quantile(Decode),
        quantile(DecodeSum),
    ]
}

impl Job {
    /// Bytes an element that the kernel cannot do without, each read or written once.
    #[must_use]
    pub fn floor(&self, kernel: &str) -> f64 {
        let codes = f64::from(self.bits) / 8.0;
        let plan = self.codec.plan(N, Dtype::F32).expect("a job's settings are valid");
        let scalars_each = 4.0 * plan.header().codec().scalars(self.bits) as f64;
        let scalars = scalars_each / self.bucket.map_or(N as f64, f64::from);
        let gradient = match self.op {
            Op::EncodeBf16 => 2.0,
            Op::EncodeFeedback => 8.0,
            _ => 4.0,
        };
        let partial = 16.0 / 8192.0;
        // Kernels of a setting alone are named by that.
        let decodes = matches!(self.op, Op::Decode | Op::DecodeAdd | Op::DecodeSum);
        let does = if kernel.contains("_fixed_") && !decodes { Some("encode") } else { kernel.rsplit('_').next() };
        match does {
            Some("scan") => gradient,
            Some("stats") => gradient + partial,
            Some("combine") => partial + (8.0 + scalars_each) / N as f64,
            Some("encode") => {
                let residual = if self.op == Op::EncodeFeedback { 4.0 } else { 0.0 };
                gradient + residual + codes + if self.bucket.is_some() { scalars } else { 8.0 / N as f64 }
            }
            _ => match self.op {
                Op::Decode => codes + scalars + 4.0,
                Op::DecodeAdd => codes + scalars + 8.0,
                _ => SUMMED as f64 * (codes + scalars) + 4.0,
            },
        }
    }

    /// Does it over a gradient of [`N`] elements and [`SUMMED`] payloads, and gives what came out: the payload's bytes,
    /// and the residual's or the values'.
    ///
    /// # Errors
    /// As the device's.
    pub fn run(&self, device: &Device, x: &[f32], payloads: &[Payload]) -> Result<Vec<u8>, Error> {
        let mut out = vec![0.0f32; x.len()];
        let mut bytes = Vec::new();
        match self.op {
            Op::EncodeF32 => bytes.extend_from_slice(device.encode(&self.codec, x, cases::seed())?.as_bytes()),
            Op::EncodeBf16 => {
                let halves: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
                let payload = device.encode(&self.codec, Gradient::Bf16(&halves), cases::seed())?;
                bytes.extend_from_slice(payload.as_bytes());
            }
            Op::EncodeFeedback => {
                let payload = device.encode_with_feedback(&self.codec, x, &mut out, cases::seed())?;
                bytes.extend_from_slice(payload.as_bytes());
            }
            Op::Decode => device.decode_into(&payloads[0], &mut out)?,
            Op::DecodeAdd => device.decode_add(&payloads[0], 0.5, &mut out)?,
            Op::DecodeSum => device.decode_sum(payloads, 0.125, &mut out)?,
        }
        bytes.extend(out.iter().flat_map(|value| value.to_le_bytes()));
        Ok(bytes)
    }
}

/// Bytes per element that a kernel of an operation cannot do without; `None` for a kernel that is not counted.
type Floor<'a> = Box<dyn Fn(&str) -> Option<f64> + 'a>;
/// What an operation does.
type Run<'a> = Box<dyn Fn(&Device) -> Result<(), Error> + 'a>;

/// An operation that is counted.
struct Counted<'a> {
    codec: &'static str,
    op: &'static str,
    /// By the kernel's name.
    floor: Floor<'a>,
    run: Run<'a>,
}

/// Every operation of the table.
fn counted(x: &[f32]) -> Result<Vec<Counted<'_>>, Error> {
    let mut all = Vec::new();
    for job in jobs() {
        let payloads = vec![Device::cpu().encode(&job.codec, x, cases::seed())?; SUMMED];
        all.push(Counted {
            codec: job.label,
            op: job.op.name(),
            floor: Box::new(move |kernel| Some(job.floor(kernel))),
            run: Box::new(move |device| job.run(device, x, &payloads).map(drop)),
        });
    }
    all.extend(around::all(x)?);
    Ok(all)
}

/// What a kernel cost in a job.
#[derive(Clone, Debug)]
pub struct Row {
    /// The codec and its setting.
    pub codec: &'static str,
    /// The operation.
    pub op: &'static str,
    /// The kernel.
    pub kernel: String,
    /// Bytes an element that it cannot do without.
    pub floor: f64,
    /// What it cost, at each of [`TARGETS`].
    pub counts: Vec<Counts>,
}

/// Counts every job at every target.
///
/// # Errors
/// A kernel's fault, in words.
pub fn count() -> Result<Vec<Row>, String> {
    let x = cases::normal(N, 5);
    let mut rows: Vec<Row> = Vec::new();
    let all = counted(&x).map_err(|e| e.to_string())?;
    for (index, (major, minor)) in TARGETS.into_iter().enumerate() {
        let machine = Arc::new(Machine::new((major, minor), 1).counting().trusting());
        let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).map_err(|e| e.to_string())?);
        // What has the same instructions executes the same.
        let alike = |earlier: usize| {
            FAMILIES.iter().all(|f| f.artifacts[earlier].instructions() == f.artifacts[index].instructions())
        };
        let same = (0..index).find(|earlier| alike(*earlier));
        if let Some(same) = same {
            rows.iter_mut().for_each(|row| row.counts.push(row.counts[same].clone()));
            continue;
        }
        for Counted { codec, op, floor, run } in &all {
            run(&device).map_err(|e| format!("{codec}, {op}: {e}"))?;
            for launched in machine.take_launched() {
                let Some(floor) = floor(&launched.kernel) else { continue };
                let same = |r: &&mut Row| r.codec == *codec && r.op == *op && r.kernel == launched.kernel;
                match rows.iter_mut().find(same) {
                    Some(row) if row.counts.len() > index => row.counts[index] += &launched.counts,
                    Some(row) => row.counts.push(launched.counts),
                    None => {
                        let counts = vec![launched.counts];
                        rows.push(Row { codec, op, kernel: launched.kernel, floor, counts });
                    }
                }
            }
        }
    }
    Ok(rows)
}

impl Row {
    /// Bytes moved an element, in whole sectors.
    #[must_use]
    pub fn moved(&self) -> f64 {
        self.counts.iter().map(|c| c.global().moved()).max().unwrap_or(0) as f64 / N as f64
    }

    /// Sectors an element beyond those that would do, were the bytes of each instruction consecutive and aligned.
    #[must_use]
    pub fn scattered(&self) -> f64 {
        let excess = |c: &Counts| c.global().sectors - c.global().least;
        self.counts.iter().map(excess).max().unwrap_or(0) as f64 * SECTOR as f64 / N as f64
    }

    /// Instructions of a thread per element, at one of [`TARGETS`].
    #[must_use]
    pub fn instructions(&self, target: usize) -> f64 {
        self.counts[target].instructions as f64 * 32.0 / N as f64
    }
}

/// Where [`table`] is committed.
pub const PAGE: &str = "docs/traffic.md";

/// The table as Markdown.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(HEAD);
    for row in rows {
        let instructions: Vec<String> = (0..TARGETS.len()).map(|t| format!("{:.1}", row.instructions(t))).collect();
        let conflicts = row.counts.iter().map(|c| c.bank_conflicts).max().unwrap_or(0);
        let _ = writeln!(
            text,
            "| {} | {} | `{}` | {:.4} | {:.4} | {:.3} | {:.4} | {} | {} |",
            row.codec,
            row.op,
            row.kernel,
            row.floor,
            row.moved(),
            row.moved() / row.floor,
            row.scattered(),
            conflicts,
            instructions.join(" | "),
        );
    }
    text
}

const HEAD: &str = "\
# Memory traffic and instructions

Counted on the PTX machine (`tests/ptx-machine`) from the committed PTX, over 2^18 normal elements: no GPU was timed.
`cargo xtask traffic --write` makes this page, and a test fails where a kernel no longer costs what it says.

- floor: bytes per element that the kernel cannot do without, each once.
- moved: bytes per element in sectors of 32, each instruction's each once. The same at every target.
- scattered: the part of what is moved that consecutive, aligned accesses of the same bytes would save.
- conflicts: passes over shared memory beyond the first, in the whole launch.
- sm_35 to sm_90: PTX instructions a thread executes for an element. The compiler behind PTX makes fewer of them.

| codec | operation | kernel | floor | moved | moved / floor | scattered | conflicts | sm_35 | sm_60 | sm_70 | sm_80 | sm_90 |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";
