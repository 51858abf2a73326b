//! What is below its aim, and why: every share, time and count in these words is taken from what the page's tables are
//! made from. What is typed is an aim, or what a trial took.

use std::fmt::Write as _;

use super::error::SassError;
use super::predict::{Part, Predicted};
use super::replay::{H200, LAUNCH};
use super::resources::THREADS;

/// How the part begins.
pub(super) const HEADING: &str = "\n## What is below its aim, and why\n";

/// Seconds of an instruction per element of 2^26 elements, where a multiprocessor has nothing else to wait for. Its
/// schedulers issue one a cycle for 32 lanes, and lose a slot in eleven: what the replay takes for that is `LOST`.
const INSTRUCTION: f64 = 2.2e-6;
/// Registers of a multiprocessor, and the number in multiples of which a thread has them.
const REGISTERS: u32 = 65536;
const GRANULE: u32 = 8;
/// Where the H200's times are among a launch's.
const GPU: usize = 1;

/// An aim: a part of the copy rate, or seconds.
#[derive(Clone, Copy)]
enum Aim {
    Share(f64),
    Seconds(f64),
}

/// An operation that has an aim, by its names in the page's tables, its name in this one, and why it is below.
struct Row {
    of: [&'static str; 2],
    name: &'static str,
    aim: Aim,
    why: fn(&Found<'_>) -> Result<String, SassError>,
}

const ROWS: [Row; 9] = [
    Row {
        of: ["QSGD 4 bit / 512", "encode bf16"],
        name: "QSGD 4 bit / 512, encode bf16",
        aim: Aim::Share(0.88),
        why: |f| {
            let k = f.kernel("qsgd_fixed_bf16_4")?;
            Ok(format!(
                "{}. {} blocks of {} registers hide all but {} us of the loads; one more would leave {} registers, of \
                 which the loads alone take 32",
                k.most(f.0),
                count(k.blocks() as usize),
                k.registers(),
                us(k.seconds() - k.issuing() - LAUNCH),
                REGISTERS / THREADS / (k.blocks() + 1) / GRANULE * GRANULE,
            ))
        },
    },
    Row {
        of: ["uniform 4 bit / 512", "encode bf16"],
        name: "uniform 4 bit / 512, encode bf16",
        aim: Aim::Share(0.88),
        why: |f| {
            let k = f.kernel("uniform_fixed_bf16_4")?;
            Ok(format!(
                "{}; {} blocks of {} registers. In a trial, two values in a register and a bound of 64 registers made \
                 it four blocks and 25.1 instructions, which took 3 us more, and spilled in the kernels for segments",
                k.most(f.0),
                k.blocks(),
                k.registers()
            ))
        },
    },
    Row {
        of: ["top-k 1 %", "select f32"],
        name: "top-k 1 %, f32",
        aim: Aim::Share(0.90),
        why: |f| {
            let [sample, filter, rest, emit] = f.top_k()?;
            Ok(format!(
                "a read takes {} us; {}. The filter takes {} us more than the read, and issues in {} of the cycles: a \
                 warp waits for the sample's keys, for its elements, and at the barriers around a tile's place, and {} \
                 blocks are all that registers and shared memory hold. The sample takes {} us: steps that follow one \
                 another in one block. `topk_rest` takes {} us, and issues in {}: counts by which blocks take pieces, \
                 states and histograms, which are loads in a row, and candidates. Writing takes {} us",
                us(f.read(4.0)),
                f.launches(),
                us(filter.alone() - f.read(4.0)),
                percent(filter.issued()),
                filter.blocks(),
                us(sample.alone()),
                us(rest.alone()),
                percent(rest.issued()),
                us(emit.alone()),
            ))
        },
    },
    Row {
        of: ["top-k 0.1 %", "select f32"],
        name: "top-k 0.1 %, f32",
        aim: Aim::Share(0.90),
        why: |f| Ok(format!("a read takes {} us; {}. The rest is as at 1 %", us(f.read(4.0)), f.launches())),
    },
    Row {
        of: ["top-k 10 %", "select f32"],
        name: "top-k 10 %, f32",
        aim: Aim::Share(0.90),
        why: |f| {
            let [_, filter, _, emit] = f.top_k()?;
            Ok(format!(
                "the filter takes {} us: {:.1} instructions, as each candidate is put on a list, found there, and \
                 stored with its place. Writing 8 bytes for each entry that is kept takes {} us",
                us(filter.alone()),
                filter.instructions(),
                us(emit.alone()),
            ))
        },
    },
    Row {
        of: ["top-k 1 %", "select bf16"],
        name: "top-k 1 %, bf16",
        aim: Aim::Share(0.90),
        why: |f| {
            let [_, filter, ..] = f.top_k()?;
            Ok(format!(
                "a read takes {} us, and the filter {}: a tile takes as many steps as of f32 for half of the bytes, \
                 and {} blocks have {:.0} KB in flight. The other launches take {} us, as of f32",
                us(f.read(2.0)),
                us(filter.alone()),
                filter.blocks(),
                filter.kilobytes(),
                us(f.0.seconds(GPU) - filter.seconds()),
            ))
        },
    },
    Row {
        of: ["PowerSGD rank 4, 8192 x 8192", "step f32"],
        name: "PowerSGD rank 4, 8192 x 8192",
        aim: Aim::Share(0.80),
        why: |f| {
            Ok(format!(
                "{} us are orthonormal columns, for which a matrix has few blocks; {}",
                us(f.orthonormal()?),
                f.launches()
            ))
        },
    },
    Row {
        of: ["PowerSGD rank 8, 8192 x 8192", "step f32"],
        name: "PowerSGD rank 8, 8192 x 8192",
        aim: Aim::Share(0.80),
        why: |f| Ok(format!("orthonormal columns take {} us", us(f.orthonormal()?))),
    },
    Row {
        of: ["PowerSGD rank 4, 2048 x 2048", "step f32"],
        name: "PowerSGD rank 4, 2048 x 2048",
        aim: Aim::Seconds(45e-6),
        why: |f| {
            Ok(format!(
                "{}, orthonormal columns {}, gathers and what fills the GPU and drains it the rest",
                f.launches(),
                us(f.orthonormal()?)
            ))
        },
    },
];

/// The section. An operation that has come to its aim is not in it.
///
/// # Errors
/// [`SassError::NotThere`] where the words are about an operation or a kernel that there is no more.
pub(super) fn why(all: &[Predicted]) -> Result<String, SassError> {
    let mut text = format!(
        "{HEADING}\nAn instruction per element takes {:.1} us of 2^26 elements, the slots \
         that schedulers lose included; a launch takes {:.1} us.\n\n| operation | of the copy rate | aim | why |\n\
         | --- | --- | --- | --- |\n",
        INSTRUCTION * 1e6,
        LAUNCH * 1e6
    );
    for row in &ROWS {
        let of = Found(find(all, row.of)?);
        let (found, aim, is_below) = match row.aim {
            Aim::Share(aim) => (percent(of.share()), percent(aim), of.share() < aim),
            Aim::Seconds(aim) => (us(of.0.seconds(GPU)) + " us", us(aim) + " us", of.0.seconds(GPU) > aim),
        };
        if is_below {
            let why = (row.why)(&of)?;
            let _ = writeln!(text, "| {} | {found} | {aim} | {why} |", row.name);
        }
    }
    Ok(text
        + "\n"
        + PROGRAMMATIC
        + "\n"
        + &lengths(all)?
        + "\n"
        + &sums(all)?
        + "\n\n"
        + &shaders(all)?
        + "\n"
        + WGSL
        + "\n")
}

/// Of launches that overlap, which the replay knows nothing of.
const PROGRAMMATIC: &str = "\
The blocks of a programmatic launch may begin while the launch before it drains, and wait for that one before they touch
memory ([ptx.md](ptx.md)): so are launched top-k's and PowerSGD's kernels that are directly behind another one of the
same call. What that saves is in no table: nothing of it was measured, and in the replay such a launch has its 2.5 us as
any other.
";

/// Of top-k, what becomes of its time with the length. Four times the longest one that is run lies on the line through
/// the two that are: it would take four times as long to run as the longest, and as much more memory.
fn lengths(all: &[Predicted]) -> Result<String, SassError> {
    const KERNELS: [&str; 4] = ["topk_sample", "topk_filter", "topk_rest", "topk_emit"];
    let row = |p: &Predicted| -> Result<(u64, [f64; 4]), SassError> {
        let mut each = [0.0; 4];
        for (seconds, launches) in each.iter_mut().zip(Found(p).top_k()?) {
            *seconds = launches.seconds();
        }
        Ok((p.of, each))
    };
    let [short, long] = ["top-k 1 %, 2^24", "top-k 1 %"].map(|codec| find(all, [codec, "select f32"]));
    let (short, long) = (short?, long?);
    let floor = long.floor;
    let (short, long) = (row(short)?, row(long)?);
    let further = 4 * long.0;
    let slope = (further - long.0) as f64 / (long.0 - short.0) as f64;
    let beyond: [f64; 4] = std::array::from_fn(|i| long.1[i] + (long.1[i] - short.1[i]) * slope);
    let mut text = format!(
        "Top-k 1 % of f32 by the length, in us of an H200, with what launching adds. The last row is not replayed: it\n\
         lies on the line through the two before it.\n\n| elements | us | of the copy rate | {} |\n|{}\n",
        KERNELS.map(|k| format!("`{k}`")).join(" | "),
        " --- |".repeat(7)
    );
    for (n, each) in [short, long, (further, beyond)] {
        let all: f64 = each.iter().sum();
        let share = percent(floor * n as f64 / H200.copy / all);
        let _ = writeln!(text, "| 2^{} | {} | {share} | {} |", n.ilog2(), us(all), each.map(us).join(" | "));
    }
    Ok(text)
}

/// Cycles per element that `cargo xtask radv --table` gives with Mesa 22.3.6: encode, with feedback, decode, decode-add,
/// sum of 8.
const SHADERS: [(&str, [f64; 5]); 2] =
    [("QSGD 4 bit / 512", [48.0, 210.0, 20.0, 72.0, 501.0]), ("uniform 4 bit / 512", [54.0, 267.0, 25.0, 78.0, 546.0])];
const SHADED: [&str; 5] = ["encode f32", "encode f32 + feedback", "decode", "decode-add", "sum of 8"];

/// Lanes times cycles in a second of an RX 7900 XTX at its game clock, and what it copies: nine tenths of 960 GB/s, which
/// is an H200's part too.
const XTX_LANES: f64 = 6144.0 * 2.3e9;
const XTX_COPY: f64 = 864e9;

/// The shaders on a GPU beside the PTX on another.
fn shaders(all: &[Predicted]) -> Result<String, SassError> {
    let mut text = String::from(
        "WGSL on an RX 7900 XTX (6144 lanes at 2.3 GHz, a copy of 864 GB/s) by Mesa's compiler for navi21: cycles of a\n\
         lane's vector instructions per element (`cargo xtask radv --table`), and the lesser of the share that these\n\
         allow and of all. Memory's own waits are not in it. Beside it, the PTX on an H200, from the table above.\n\n\
         | codec | operation | cycles | WGSL | PTX |\n| --- | --- | --- | --- | --- |\n",
    );
    for (codec, cycles) in SHADERS {
        for (op, cycles) in SHADED.into_iter().zip(cycles) {
            let p = find(all, [codec, op])?;
            let share = (p.floor * XTX_LANES / cycles / XTX_COPY).min(1.0);
            let ptx = percent(p.share(1, &H200));
            let _ = writeln!(text, "| {codec} | {op} | {cycles:.0} | {} | {ptx} |", percent(share));
        }
    }
    Ok(text + BELOW)
}

/// Why the sum of eight is below three quarters of the PTX.
const BELOW: &str = "
All but the sum of 8 are above three quarters of the PTX. There a value is looked up, and added in integers: 51 cycles,
of which the addition takes 45. With additions of the hardware it would take 173 in all, and these round as wanted only
where SPIR-V says so (RoundingModeRTE, DenormPreserve, NoContraction), which WGSL cannot. wgpu takes SPIR-V on Vulkan as
an experiment, by an unsafe call that nothing checks; so it was left out.
";

/// Of the shaders' sums in registers.
const WGSL: &str = "\
WGSL loads a span's values for its statistic and again for its codes, and with feedback adds the residual both times.
In a trial the sums were held between the two, 32 registers of a thread. Of QSGD 4 bit / 512 with feedback, Mesa's
compiler for an AMD GPU (`cargo xtask radv`, navi21) then made 6941 cycles of vector instructions for a wave's span in
the place of 7432, and with the L2 norm 8177 in the place of 10213; without feedback as many as before; nothing spilled.
But one module is for all settings, and it took 104 registers in the place of 72: of 1024, 9 waves in the place of 14,
with feedback or without. What the second look loads is in a cache, so no bytes of memory are saved. It was left out.
";

/// Of sums of codes of one or two bits.
fn sums(all: &[Predicted]) -> Result<String, SassError> {
    let named = ["1-bit SGD / 512", "EF-SignSGD / 8192", "DRIVE / 8192", "ternary / 512"];
    let of: Vec<&Predicted> = named.iter().map(|name| find(all, [name, "sum of 8"])).collect::<Result<_, _>>()?;
    let between = |what: &dyn Fn(&Predicted) -> f64| {
        let values = || of.iter().map(|p| what(p));
        [values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max)]
    };
    let [fewest, most] = between(&|p| p.parts.iter().map(|part| part.cost.instructions()).sum());
    let [least, bytes] = between(&|p| p.floor);
    let [soonest, latest] = [fewest, most].map(|count| us(count * INSTRUCTION));
    Ok(format!(
        "Sums of 8 at one or two bits a code move {least:.0} to {bytes:.0} bytes per element, and issue {fewest:.0} to \
         {most:.0} instructions:\n{soonest} to {latest} us. Of 1-bit SGD, which has two scalars, the assembler waits for \
         the codes before it loads the scalars.\nIn a trial with scalars first it took 8 us less, and ternary codes 14 us \
         more."
    ))
}

fn find<'a>(all: &'a [Predicted], [codec, op]: [&str; 2]) -> Result<&'a Predicted, SassError> {
    let found = all.iter().find(|p| p.codec == codec && p.op == op);
    found.ok_or_else(|| SassError::NotThere { what: format!("{codec}, {op}") })
}

fn us(seconds: f64) -> String {
    format!("{:.0}", seconds * 1e6)
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// Small numbers in words.
fn count(number: usize) -> String {
    const WORDS: [&str; 10] = ["No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine"];
    WORDS.get(number).map_or_else(|| number.to_string(), |word| (*word).to_owned())
}

/// An operation of the tables.
struct Found<'a>(&'a Predicted);

impl Found<'_> {
    fn share(&self) -> f64 {
        self.0.share(GPU, &H200)
    }

    /// Seconds that the least bytes would take.
    fn floor(&self) -> f64 {
        self.share() * self.0.seconds(GPU)
    }

    /// Seconds that so many bytes of each element take.
    fn read(&self, bytes: f64) -> f64 {
        bytes * self.0.of as f64 / H200.copy
    }

    fn launches(&self) -> String {
        let number = self.0.parts.len();
        let early = count(self.0.parts.iter().filter(|part| part.early).count()).to_lowercase();
        let all = count(number).to_lowercase();
        format!("{all} launches, {early} of them programmatic, are {} us", us(number as f64 * LAUNCH))
    }

    fn top_k(&self) -> Result<[Launches<'_>; 4], SassError> {
        Ok([
            self.kernel("topk_sample")?,
            self.kernel("topk_filter")?,
            self.kernel("topk_rest")?,
            self.kernel("topk_emit")?,
        ])
    }

    /// Seconds of the kernels that make columns orthonormal.
    fn orthonormal(&self) -> Result<f64, SassError> {
        Ok(self.kernel("powersgd_products")?.seconds() + self.kernel("powersgd_factor")?.seconds())
    }

    fn kernel(&self, name: &str) -> Result<Launches<'_>, SassError> {
        let parts: Vec<&Part> = self.0.parts.iter().filter(|part| part.kernel == name).collect();
        if parts.is_empty() {
            return Err(SassError::NotThere { what: format!("{}, {}: {name}", self.0.codec, self.0.op) });
        }
        Ok(Launches(parts))
    }
}

/// The launches of one kernel in an operation, one at least.
struct Launches<'a>(Vec<&'a Part>);

impl Launches<'_> {
    fn seconds(&self) -> f64 {
        self.0.iter().map(|part| part.seconds[GPU]).sum()
    }

    /// Without what launching takes.
    fn alone(&self) -> f64 {
        self.seconds() - self.0.len() as f64 * LAUNCH
    }

    fn issued(&self) -> f64 {
        self.0[0].issued[GPU]
    }

    fn blocks(&self) -> u32 {
        self.0[0].blocks
    }

    fn registers(&self) -> u32 {
        self.0[0].used.registers
    }

    fn instructions(&self) -> f64 {
        self.0.iter().map(|part| part.cost.instructions()).sum()
    }

    fn kilobytes(&self) -> f64 {
        self.0[0].cost.in_flight * f64::from(self.blocks() * THREADS) / 1024.0
    }

    /// Seconds in which the instructions are issued.
    fn issuing(&self) -> f64 {
        self.instructions() * INSTRUCTION
    }

    /// What instructions leave of the copy rate.
    fn most(&self, of: &Predicted) -> String {
        let most = Found(of).floor() / (self.issuing() + LAUNCH);
        format!(
            "{:.1} instructions are {} us, so {} is the most there is",
            self.instructions(),
            us(self.issuing()),
            percent(most)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::Cost;
    use crate::pipe::PIPES;
    use crate::tools::Resources;

    const KERNELS: [&str; 8] = [
        "qsgd_fixed_bf16_4",
        "uniform_fixed_bf16_4",
        "topk_sample",
        "topk_filter",
        "topk_rest",
        "topk_emit",
        "powersgd_products",
        "powersgd_factor",
    ];

    fn part(kernel: &str, us: f64) -> Part {
        let mut by_pipe = [0.0; PIPES.len()];
        by_pipe[0] = 10.0;
        Part {
            kernel: kernel.to_owned(),
            early: kernel != "topk_sample",
            used: Resources { registers: 48, shared: 0, stack: 0, spills: 0 },
            blocks: 5,
            cost: Cost { by_pipe, bytes: 4.0, loads: 8.0, in_flight: 64.0, barriers: 0.0, inner: None },
            seconds: vec![us * 1e-6; 2],
            issued: vec![0.25; 2],
        }
    }

    /// Operations whose every kernel takes so long.
    fn all(us: f64) -> Vec<Predicted> {
        let sums = ["1-bit SGD / 512", "EF-SignSGD / 8192", "DRIVE / 8192", "ternary / 512"].map(|of| [of, "sum of 8"]);
        let named = ROWS.iter().map(|row| row.of).chain([["top-k 1 %, 2^24", "select f32"]]).chain(sums);
        let shaded = SHADERS.iter().flat_map(|(codec, _)| SHADED.map(|op| [*codec, op]));
        let named = named.chain(shaded);
        let of = |[codec, op]: [&'static str; 2]| {
            // A quarter of the elements takes half of the time.
            let (of, us) = if codec.ends_with("2^24") { (1 << 24, us / 2.0) } else { (1 << 26, us) };
            let parts = KERNELS.iter().map(|kernel| part(kernel, us)).collect();
            Predicted { codec: codec.to_owned(), op, of, floor: 4.0, parts, reported: None }
        };
        named.map(of).collect()
    }

    #[test]
    fn the_words_go_by_the_tables() {
        let text = why(&all(100.2)).unwrap();
        // 2^28 bytes at 4.3 TB/s are 62.4 us of 802; the filter is 100.2 less a launch less those.
        assert!(
            text.contains("| top-k 1 %, f32 | 8 % | 90 % | a read takes 62 us; eight launches, seven of them programmatic, are 20 us."),
            "{text}"
        );
        // Of four kernels.
        assert!(text.contains("| 2^24 | 200 | 8 % | 50 | 50 | 50 | 50 |"), "{text}");
        assert!(text.contains("| 2^26 | 401 | 16 % | 100 | 100 | 100 | 100 |"), "{text}");
        assert!(text.contains("| 2^28 | 1202 | 21 % | 301 | 301 | 301 | 301 |"), "{text}");
        assert!(text.contains("The filter takes 35 us more than the read, and issues in 25 % of the cycles"), "{text}");
        assert!(text.contains("Five blocks of 48 registers hide all but 76 us of the loads; one more would leave 40"));
        assert!(why(&all(110.0)).unwrap().contains("The filter takes 45 us more than the read"));
    }

    #[test]
    fn what_has_come_to_its_aim_is_left_out() {
        let text = why(&all(5.0)).unwrap();
        assert!(!ROWS.iter().any(|row| text.contains(&format!("| {} |", row.name))), "{text}");
    }

    #[test]
    fn an_operation_or_a_kernel_that_is_no_more_is_an_error() {
        let mut without = all(100.0);
        without.remove(0);
        let error = why(&without).unwrap_err().to_string();
        assert!(error.contains("QSGD 4 bit / 512, encode bf16, which its tables no longer have"), "{error}");
        let mut without = all(100.0);
        without[0].parts.remove(0);
        assert!(why(&without).unwrap_err().to_string().contains("encode bf16: qsgd_fixed_bf16_4"));
    }
}
