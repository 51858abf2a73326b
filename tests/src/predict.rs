//! What the counts come to on one GPU, until a GPU says: a model of three numbers, with its assumptions beside it.

use std::fmt::Write as _;

use crate::{low_rank_traffic, reads, traffic};

/// A GPU as the model has it.
#[derive(Clone, Copy, Debug)]
pub struct Chip {
    /// Its name.
    pub name: &'static str,
    /// Bytes a second of a copy, those read and those written.
    pub copy: f64,
    /// Instructions of a warp a second, on all multiprocessors.
    pub issue: f64,
    /// Seconds from a launch to the one that waits for it.
    pub launch: f64,
}

/// An H200: 4.3 TB/s was measured for a copy; 132 multiprocessors issue four instructions a cycle at 1.98 GHz; two
/// microseconds are what a dependent launch in a stream or a graph takes, and are assumed.
pub const H200: Chip = Chip { name: "H200", copy: 4.3e12, issue: 132.0 * 4.0 * 1.98e9, launch: 2e-6 };

/// The size of which a table speaks, and a larger one.
pub const SIZES: [u32; 2] = [26, 28];

/// What was counted of an operation, for an element, and how many launches it takes.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Bytes that it cannot do without.
    pub floor: f64,
    /// Bytes moved.
    pub bytes: f64,
    /// Instructions of a thread.
    pub instructions: f64,
    /// Launches.
    pub launches: usize,
    /// How often blocks wait within one until all have done their part.
    pub hand_overs: usize,
}

impl Chip {
    /// Seconds for `n` elements: the slower of memory and instructions, and the launches. What is waited for within one is taken to cost
    /// as much as a launch.
    #[must_use]
    pub fn seconds(&self, work: Work, n: f64) -> f64 {
        let memory = work.bytes * n / self.copy;
        let issue = work.instructions * n / 32.0 / self.issue;
        memory.max(issue) + (work.launches + work.hand_overs) as f64 * self.launch
    }

    /// The floor's part of that.
    #[must_use]
    pub fn share(&self, work: Work, n: f64) -> f64 {
        work.floor * n / self.copy / self.seconds(work, n)
    }
}

/// An operation and its work.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The codec and its setting.
    pub codec: String,
    /// The operation.
    pub op: String,
    /// What it costs.
    pub work: Work,
}

/// The operations of which the page speaks, from the counts for sm_90.
#[must_use]
pub fn all(kernels: &[traffic::Row], selections: &[reads::Row], steps: &[low_rank_traffic::Row]) -> Vec<Prediction> {
    let mut all: Vec<Prediction> = Vec::new();
    for row in kernels {
        let name = (row.codec.to_owned(), row.op.to_owned());
        let one =
            Work { floor: 0.0, bytes: row.moved(), instructions: row.instructions(4), launches: 1, hand_overs: 0 };
        match all.iter_mut().find(|p| (&p.codec, &p.op) == (&name.0, &name.1)) {
            // A kernel's floor is beside those of the others; an operation's is that of its last one, which reads the
            // gradient too.
            Some(p) => {
                p.work.bytes += one.bytes;
                p.work.instructions += one.instructions;
                p.work.launches += 1;
                p.work.floor = p.work.floor.max(row.floor);
            }
            None => all.push(Prediction { codec: name.0, op: name.1, work: Work { floor: row.floor, ..one } }),
        }
    }
    for row in selections.iter().filter(|row| row.input == "normal") {
        let largest = selections.iter().filter(|r| r.input == "normal" && r.kind == row.kind).map(|r| r.n).max();
        if Some(row.n) != largest || row.misled {
            continue;
        }
        // An entry kept is an index and a value; with feedback the sum is written too.
        let residual = if matches!(row.kind, reads::Kind::Feedback | reads::Kind::Lazy) { 4.0 } else { 0.0 };
        all.push(Prediction {
            codec: format!("top-k {} %", (row.part * 1e4).round() / 1e2),
            op: format!("select {}", row.kind.name()),
            work: Work {
                floor: row.kind.floor() + residual + 8.0 * row.part,
                bytes: row.read + row.written,
                instructions: row.instructions,
                launches: row.launches,
                hand_overs: row.hand_overs,
            },
        });
    }
    for row in steps.iter().filter(|row| row.shape == low_rank_traffic::SHAPE) {
        let (dtype, sides) = (if row.half { "bf16" } else { "f32" }, if row.one_sided { ", one-sided" } else { "" });
        all.push(Prediction {
            codec: format!("PowerSGD rank {}{sides}", row.rank),
            op: format!("step {dtype}"),
            work: Work {
                floor: row.floor(),
                bytes: row.total(),
                instructions: row.instructions,
                launches: row.launches,
                hand_overs: 0,
            },
        });
    }
    all
}

/// Where the page's part begins.
pub const HEADING: &str = "\n## Predicted for an H200";

/// The table as Markdown.
#[must_use]
pub fn table(predictions: &[Prediction]) -> String {
    let mut text = format!("{HEADING}{HEAD}");
    for Prediction { codec, op, work } in predictions {
        let waits = if work.hand_overs == 0 { String::new() } else { format!(" + {}", work.hand_overs) };
        let launches = format!("{}{waits}", work.launches);
        let _ = write!(text, "| {codec} | {op} | {:.2} | {:.1} | {launches} |", work.bytes, work.instructions);
        for size in SIZES {
            let n = f64::from(size).exp2();
            let _ = write!(text, " {:.0} | {:.0} % |", H200.seconds(*work, n) * 1e6, 100.0 * H200.share(*work, n));
        }
        text.push('\n');
    }
    text + TAIL
}

const HEAD: &str = "

**Nothing of this was measured.** It is what the counts above come to in a model of three numbers: 4.3 TB/s for a copy (measured on an
H200), 1.045 instructions of a warp a picosecond on all multiprocessors (132 x 4 a cycle at 1.98 GHz), and 2 microseconds a launch, or
for blocks that wait until all of a pass is done (assumed).
An operation takes the longer of its bytes and its instructions, and its launches one after another. Instructions are PTX's, of which the
assembler makes fewer; stores count once an instruction, of which a cache makes fewer; waiting that no other warp covers is not in it.
[h100.md](h100.md) has what an H100 took beside it, and where the model is wrong.

- bytes, instructions: for an element, of all kernels. Top-k is counted over 2^24 elements (bf16 and feedback over 2^20), PowerSGD over 2048 x 2048.
- launches: and, behind a plus, how often blocks wait within one until all have done their part.
- us, of the limit: the time, and the part of it that the floor's bytes would take: the one read of top-k with its entries, 20 bytes of a step.

| codec | operation | bytes | instructions | launches | us, 2^26 | of the limit | us, 2^28 | of the limit |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

const TAIL: &str = "
Beside it, from the same 4.3 TB/s: `cub::DeviceTopK` reads a normal gradient of f32 twice at 0.1 % and less and three times at 1 and 10 %, and was
measured at 92 % of a copy where it reads twice (NVIDIA/cccl #5673): 542 and 814 us for 2^28 elements. `torch.topk` reads five times, after
8 bytes per element for magnitudes: 1750 us before anything else. torch's PowerSGD hook moves 44 bytes per element and calls a factorisation twice
a matrix: 2750 us for 2^28 elements, 85 to 118 us a matrix aside.
";
