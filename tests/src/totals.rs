//! What all kernels of an operation come to.

use std::fmt::Write as _;

use crate::{low_rank_traffic, reads, traffic};

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

impl Work {
    /// Bytes moved, as a multiple of those that it cannot do without.
    #[must_use]
    pub fn multiple(&self) -> f64 {
        self.bytes / self.floor
    }
}

/// An operation and its work.
#[derive(Clone, Debug)]
pub struct Total {
    /// The codec and its setting.
    pub codec: String,
    /// The operation.
    pub op: String,
    /// What it costs.
    pub work: Work,
}

/// The operations of which the page speaks, from the counts for sm_90.
#[must_use]
pub fn all(kernels: &[traffic::Row], selections: &[reads::Row], steps: &[low_rank_traffic::Row]) -> Vec<Total> {
    let mut all: Vec<Total> = Vec::new();
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
            None => all.push(Total { codec: name.0, op: name.1, work: Work { floor: row.floor, ..one } }),
        }
    }
    for row in selections.iter().filter(|row| row.input == "normal") {
        let [large, small] = reads::SIZES;
        if row.n != (if row.kind == reads::Kind::F32 { large } else { small }) || row.misled {
            continue;
        }
        // An entry kept is an index and a value; with feedback the sum is written too.
        let residual = if matches!(row.kind, reads::Kind::Feedback | reads::Kind::Lazy) { 4.0 } else { 0.0 };
        all.push(Total {
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
        all.push(Total {
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
pub const HEADING: &str = "\n## Operations";

/// The table as Markdown.
#[must_use]
pub fn table(totals: &[Total]) -> String {
    let mut text = format!("{HEADING}{HEAD}");
    for Total { codec, op, work } in totals {
        let waits = if work.hand_overs == 0 { String::new() } else { format!(" + {}", work.hand_overs) };
        let Work { floor, bytes, instructions, launches, .. } = work;
        let times = work.multiple();
        let _ = writeln!(
            text,
            "| {codec} | {op} | {floor:.2} | {bytes:.2} | {times:.3} | {instructions:.1} | {launches}{waits} |"
        );
    }
    text + TAIL
}

const HEAD: &str = "

All kernels of an operation together, on sm_90. How long that takes is more than bytes: [sass.md](sass.md) replays the machine
code, and [h100.md](h100.md) has what an H100 took.

- floor, bytes: per element, what the operation cannot do without, and what is moved. For top-k one read with the entries that are
  kept, for a step of PowerSGD 20 bytes of f32.
- instructions: PTX's, per element. Top-k is counted over 2^24 elements (bf16 and feedback over 2^20), PowerSGD over 2048 x 2048.
- launches: and, behind a plus, how often blocks wait within one until all have done their part.

| codec | operation | floor | bytes | bytes / floor | instructions | launches |
| --- | --- | --- | --- | --- | --- | --- |
";

const TAIL: &str = "
Beside it: `cub::DeviceTopK` reads a normal gradient of f32 twice at 0.1 % and less and three times at 1 and 10 %
(NVIDIA/cccl #5673). `torch.topk` reads five times, after 8 bytes per element for magnitudes. torch's PowerSGD hook moves 44
bytes per element.
";
