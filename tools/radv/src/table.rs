//! Cycles per element of what is done most: the table that docs/sass.md has of the shaders.

use super::listing::{Counts, Loop};
use super::{Compiler, with};

/// An operation, with the settings that its shader is compiled for.
struct Operation {
    codec: &'static str,
    op: &'static str,
    kernel: &'static str,
    flags: &'static str,
    of: Of,
}

/// How often a thread comes to what: the loops of `bucketed/encode_span.wgsl` and `decode_span.wgsl`.
#[derive(Clone, Copy)]
enum Of {
    Encode,
    Decode { payloads: u32 },
}

impl Of {
    /// Elements of a thread.
    fn elements(self) -> u32 {
        match self {
            Self::Encode => 32,
            Self::Decode { .. } => 8,
        }
    }

    /// Conditions that hold in one of a group's eight waves alone: buckets are settled there, and tables written.
    fn first_wave(self) -> &'static [&'static str] {
        match self {
            Self::Encode => &["thread < (256u >> shift)"],
            Self::Decode { .. } => {
                &["thread < (DECODE_SPAN >> bucket_log2) && bucket_first < extent()", "first < (buckets << bits)"]
            }
        }
    }

    /// Turns of each loop. A loop of a few instructions clears workgroup memory, and is counted once.
    fn turns(self, nest: &[Loop]) -> Option<Vec<u32>> {
        const SMALL: u32 = 20;
        let large = nest.iter().filter(|one| one.depth == 0 && one.own >= SMALL).count();
        let mut seen = 0;
        let turns = |one: &Loop| {
            if one.depth == 0 && one.own < SMALL {
                return Some(1);
            }
            seen += usize::from(one.depth == 0);
            match (self, one.depth, large - seen.min(large)) {
                // Four units, of two halves each; before them, where the compiler left it a loop, eight rows to measure.
                (Self::Encode, 0, 0) => Some(4),
                (Self::Encode, 1, 0) => Some(2),
                (Self::Encode, 0, 1) => Some(8),
                (Self::Decode { payloads }, 0, 0) => Some(payloads),
                _ => None,
            }
        };
        nest.iter().map(turns).collect()
    }
}

/// Without the branches that few elements take.
const RARE: [&str; 4] = ["any(rare)", "any(low)", "any(e.x != vec4<u32>(ONE))", "any(d.w != vec4<u32>(ONE))"];

/// Prints a row per operation.
pub(super) fn print(compiler: &Compiler) -> Result<(), String> {
    println!("| codec | operation | cycles per element |\n|---|---|---|");
    for (codec, kernels) in [
        ("QSGD 4 bit / 512", ["qsgd_encode", "qsgd_decode"]),
        ("uniform 4 bit / 512", ["uniform_encode", "uniform_decode"]),
    ] {
        let [encode, decode] = kernels;
        let operation = |op, kernel, flags, of| Operation { codec, op, kernel, flags, of };
        for one in [
            operation("encode f32", encode, "0u", Of::Encode),
            operation("encode f32 + feedback", encode, "4u", Of::Encode),
            operation("decode", decode, "0u", Of::Decode { payloads: 1 }),
            operation("decode-add", decode, "3u", Of::Decode { payloads: 1 }),
            operation("sum of 8", decode, "2u", Of::Decode { payloads: 8 }),
        ] {
            println!("| {} | {} | {:.0} |", one.codec, one.op, one.cycles(compiler)?);
        }
    }
    Ok(())
}

impl Operation {
    fn cycles(&self, compiler: &Compiler) -> Result<f64, String> {
        let [most, first] = [self.of.first_wave(), &[]].map(|never| self.executed(compiler, never));
        let (most, first) = (f64::from(most?), f64::from(first?));
        Ok((most + (first - most) / 8.0) / f64::from(self.of.elements()))
    }

    /// Cycles of a thread, where `never` does not hold.
    fn executed(&self, compiler: &Compiler, never: &[&str]) -> Result<u32, String> {
        let shader = gradwire_shaders::SHADERS.iter().find(|shader| shader.name == self.kernel);
        let shader = shader.ok_or_else(|| format!("no shader is named {}", self.kernel))?;
        let settings =
            [("params.bits", "4u"), ("params.bucket_log2", "9u"), ("params.dtype", "0u"), ("params.flags", self.flags)];
        let left_out = RARE.iter().chain(never).map(|text| (*text, "false"));
        let source =
            settings.into_iter().chain(left_out).fold(shader.source.to_owned(), |s, (from, to)| with(&s, from, to));
        if let Some(missing) = never.iter().find(|text| !shader.source.contains(**text)) {
            return Err(format!("{} has no `{missing}` any more", self.kernel));
        }
        let counts = Counts::of(&compiler.compile(shader, &source)?.listing);
        let turns = self.of.turns(&counts.nest);
        let turns =
            turns.ok_or_else(|| format!("{} has other loops than are known: {:?}", self.kernel, counts.nest))?;
        Ok(counts.executed(&turns))
    }
}
