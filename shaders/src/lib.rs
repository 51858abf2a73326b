//! Gradwire's kernels in WGSL, and a table that describes each entry point.
//!
//! WGSL fixes neither the rounding of `f32` nor what happens to subnormal numbers, and lets a compiler contract
//! operations and assume that there are no NaNs. Numbers here are the `u32` of their bits, and `common/soft.wgsl` does
//! what IEEE 754 binary32 does in integers. So their bytes are the CPU's on every device. Encoders guess a level in
//! `f32`, and compute it in integers wherever an error that WGSL allows could change it (`bucketed/codec.wgsl`).
//! PowerSGD alone has sums in `f32`, of which no two backends have to have the same bits; `powersgd/params.wgsl` says
//! how it keeps to that.
//!
//! A bucketed codec is one file in `codecs/`; the kernels in `bucketed/` are made for each of them from its row in
//! [`gradwire_kernels::codecs`]. Quantile buckets have kernels of their own in `quantile/`.
//!
//! Every shader is one module with one entry point. Its parameter struct (of `gradwire-kernels`) is the uniform at
//! `@group(0) @binding(0)`; its buffers follow from binding 1 on.

#![no_std]
#![forbid(unsafe_code)]

/// What a kernel's buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The gradient: f32, or f16 or bf16 two to a word.
    Input,
    /// The residual of error feedback.
    Residual,
    /// The wire's scalars.
    Scalars,
    /// The wire's codes.
    Codes,
    /// Scratch between launches.
    Workspace,
    /// What went wrong.
    Status,
    /// Decoded values.
    Output,
    /// The indices of sparse entries.
    Indices,
    /// Their values.
    Values,
}

/// A storage buffer of an entry point, an array of `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// What it holds.
    pub role: Role,
    /// Whether the shader declares it `read_write`.
    pub writable: bool,
}

/// An entry point and the module that it lies in.
#[derive(Clone, Copy, Debug)]
pub struct Shader {
    /// The name of the entry point.
    pub name: &'static str,
    /// The module.
    pub source: &'static str,
    /// The buffers: the one at index `i` is `@group(0) @binding(i + 1)`.
    pub bindings: &'static [Binding],
    /// Threads of a workgroup.
    pub workgroup_size: u32,
    /// Bytes of workgroup memory. Shaders do not count on its being zero at the start.
    pub workgroup_bytes: u32,
}

const fn read(role: Role) -> Binding {
    Binding { role, writable: false }
}

const fn write(role: Role) -> Binding {
    Binding { role, writable: true }
}

const SCAN: &[Binding] = &[read(Role::Input), read(Role::Residual), write(Role::Status)];
const STATS_SEGMENTS: &[Binding] =
    &[read(Role::Input), read(Role::Residual), read(Role::Workspace), write(Role::Status)];
const COMBINE_SEGMENTS: &[Binding] = &[write(Role::Scalars), read(Role::Workspace), write(Role::Status)];
const STATS: &[Binding] = &[read(Role::Input), read(Role::Residual), write(Role::Workspace)];
const COMBINE: &[Binding] = &[write(Role::Scalars), write(Role::Workspace)];
const ENCODE: &[Binding] = &[
    read(Role::Input),
    write(Role::Residual),
    write(Role::Scalars),
    write(Role::Codes),
    read(Role::Workspace),
    read(Role::Status),
];
const SAMPLE: &[Binding] = &[read(Role::Input), read(Role::Residual), write(Role::Workspace)];
const FILTER: &[Binding] = &[read(Role::Input), write(Role::Residual), write(Role::Workspace)];
const SETTLE: &[Binding] = &[write(Role::Residual), write(Role::Workspace)];
const EMIT: &[Binding] =
    &[read(Role::Input), write(Role::Residual), write(Role::Workspace), write(Role::Indices), write(Role::Values)];
const BLOCK: &[Binding] =
    &[read(Role::Input), write(Role::Residual), read(Role::Workspace), write(Role::Indices), write(Role::Values)];
const SCATTER: &[Binding] = &[read(Role::Indices), read(Role::Values), write(Role::Output)];
const MOMENTUM: &[Binding] = &[read(Role::Input), write(Role::Residual)];
const ROTATE: &[Binding] = &[read(Role::Input), write(Role::Output)];
const VOTE: &[Binding] = &[read(Role::Input), write(Role::Output)];
const RANDOM_GATHER: &[Binding] = &[read(Role::Input), write(Role::Residual), write(Role::Output)];
const RANDOM_SCATTER: &[Binding] = &[read(Role::Values), write(Role::Output)];
const FACTOR: &[Binding] = &[write(Role::Workspace), read(Role::Values)];
const FORM: &[Binding] = &[read(Role::Input), write(Role::Residual), write(Role::Workspace), write(Role::Status)];
const GATHER: &[Binding] = &[write(Role::Workspace), write(Role::Status), write(Role::Values)];
const EXPAND: &[Binding] = &[read(Role::Workspace), write(Role::Output)];
const PLAIN: &[Binding] = &[
    read(Role::Input),
    write(Role::Residual),
    write(Role::Workspace),
    write(Role::Status),
    write(Role::Output),
    write(Role::Values),
];
const DECODE: &[Binding] = &[read(Role::Scalars), read(Role::Codes), write(Role::Output)];
const DECODE_SEGMENTS: &[Binding] =
    &[read(Role::Scalars), read(Role::Codes), write(Role::Output), read(Role::Workspace)];
const SCAN_SEGMENTS: &[Binding] =
    &[read(Role::Input), read(Role::Residual), write(Role::Status), read(Role::Workspace)];

const UNITS_MEASURE: &[Binding] = &[read(Role::Codes), write(Role::Values), write(Role::Workspace)];
const ENTROPY_SUMS: &[Binding] = &[read(Role::Values), write(Role::Workspace)];
const ENTROPY_OFFSETS: &[Binding] = &[write(Role::Workspace), write(Role::Status)];
const UNITS_WRITE: &[Binding] = &[read(Role::Codes), write(Role::Values), read(Role::Workspace)];
const UNITS_READ: &[Binding] = &[write(Role::Codes), read(Role::Values), read(Role::Workspace)];

/// A module from its files; `common/soft.wgsl` is in all of them.
macro_rules! module {
    ($($file:literal),+) => {
        concat!(include_str!("common/soft.wgsl"), $("\n", include_str!($file)),+)
    };
}

/// A module of top-k.
macro_rules! topk {
    ($($file:literal),+) => {
        module!("topk/params.wgsl", "topk/segments.wgsl", $($file),+)
    };
}

/// An entry point of a bucketed codec: its module is the codec's files and those of the kernel, the last of which has
/// `run`.
macro_rules! stage {
    ($codec:literal, $name:literal, [$($of_codec:literal),+], [$($file:literal),+], $bindings:expr, $bytes:expr) => {
        entry(
            concat!($codec, "_", $name),
            concat!(
                module!("common/wide.wgsl", "bucketed/codec.wgsl", $($of_codec,)+ $($file),+),
                "\n@compute @workgroup_size(256)\nfn ", $codec, "_", $name,
                "(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {\n",
                "    run(group.x, thread);\n}\n"
            ),
            $bindings,
            $bytes,
        )
    };
}

/// An entry point that measures spans which are all one bucket.
macro_rules! stats {
    ($codec:literal, $name:literal, $of_codec:tt, [$($file:literal),+], $bindings:expr, $bytes:expr) => {
        stage!($codec, $name, $of_codec, [
            "bucketed/encode_params.wgsl",
            "common/half.wgsl",
            "bucketed/gradient.wgsl",
            "bucketed/one_bucket.wgsl",
            "bucketed/statistic.wgsl",
            "bucketed/measure.wgsl",
            "bucketed/leave.wgsl",
            $($file),+
        ], $bindings, $bytes)
    };
}

/// An entry point that folds partial statistics.
macro_rules! combine {
    ($codec:literal, $name:literal, $of_codec:tt, [$($file:literal),+], $bindings:expr, $bytes:expr) => {
        stage!($codec, $name, $of_codec, [
            "bucketed/encode_params.wgsl",
            "bucketed/one_bucket.wgsl",
            "bucketed/statistic.wgsl",
            "bucketed/fold.wgsl",
            $($file),+
        ], $bindings, $bytes)
    };
}

/// An entry point that encodes.
macro_rules! encode {
    ($codec:literal, $name:literal, $looks:literal, $of_codec:tt, [$($file:literal),+], $bytes:expr) => {
        stage!($codec, $name, $of_codec, [
            "bucketed/encode_params.wgsl",
            "common/half.wgsl",
            "bucketed/gradient.wgsl",
            "bucketed/draws.wgsl",
            "bucketed/statistic.wgsl",
            "bucketed/measure.wgsl",
            $looks,
            "bucketed/decoders.wgsl",
            "bucketed/encode_span.wgsl",
            $($file),+
        ], ENCODE, $bytes)
    };
}

/// An entry point that decodes.
macro_rules! decode {
    ($codec:literal, $name:literal, $of_codec:tt, [$($file:literal),+], $bindings:expr) => {
        stage!($codec, $name, $of_codec, [
            "bucketed/decode_params.wgsl",
            "bucketed/decoders.wgsl",
            "bucketed/decode_unit.wgsl",
            "bucketed/decode_span.wgsl",
            $($file),+
        ], $bindings, 5120)
    };
}

/// Bytes of workgroup memory of an entry point that encodes: encoders, decoders, and statistics of 256 buckets, or in
/// their place 1024 words of codes.
const fn encoder_bytes(maxima: u32, sums: u32) -> u32 {
    let words = 256 * (maxima + 2 * sums);
    8192 + 4 * if words > 1024 { words } else { 1024 }
}

/// The entry points of a bucketed codec for tensors in buckets, from its name, how many maxima and sums its statistic
/// has, how often it looks at values, and its files. `bucketed/codec.wgsl` says what the files bring.
macro_rules! of_buckets {
    ($codec:literal, maxima: $maxima:literal, sums: $sums:literal, looks: $looks:literal, $of_codec:tt) => {{
        const ENCODER: u32 = encoder_bytes($maxima, $sums);
        [
            encode!(
                $codec,
                "encode",
                $looks,
                $of_codec,
                ["bucketed/whole.wgsl", "bucketed/whole_draws.wgsl", "bucketed/encode.wgsl"],
                ENCODER
            ),
            decode!($codec, "decode", $of_codec, ["bucketed/whole.wgsl", "bucketed/decode.wgsl"], DECODE),
            encode!(
                $codec,
                "encode_segments",
                $looks,
                $of_codec,
                ["bucketed/item.wgsl", "bucketed/item_draws.wgsl", "bucketed/encode_segments.wgsl"],
                ENCODER
            ),
            decode!(
                $codec,
                "decode_segments",
                $of_codec,
                ["bucketed/item.wgsl", "bucketed/decode_segments.wgsl"],
                DECODE_SEGMENTS
            ),
        ]
    }};
}

/// Those for tensors that are one bucket; none of a codec that has none.
macro_rules! of_whole_tensors {
    (true, $codec:literal, maxima: $maxima:literal, sums: $sums:literal, looks: $looks:literal, $of_codec:tt) => {{
        // Words of one bucket's statistic, with sums of 96 bits.
        const ONE: u32 = 4 * ($maxima + 3 * $sums);
        &[
            stats!($codec, "stats", $of_codec, ["bucketed/whole.wgsl", "bucketed/stats.wgsl"], STATS, ONE),
            combine!($codec, "combine", $of_codec, ["bucketed/combine.wgsl"], COMBINE, ONE),
            stats!(
                $codec,
                "stats_segments",
                $of_codec,
                ["bucketed/item.wgsl", "bucketed/stats_segments.wgsl"],
                STATS_SEGMENTS,
                ONE
            ),
            combine!($codec, "combine_segments", $of_codec, ["bucketed/combine_segments.wgsl"], COMBINE_SEGMENTS, ONE),
            encode!(
                $codec,
                "encode_tensors",
                $looks,
                $of_codec,
                ["bucketed/item.wgsl", "bucketed/item_draws.wgsl", "bucketed/encode_segments.wgsl"],
                encoder_bytes($maxima, $sums)
            ),
        ]
    }};
    (false, $($of_codec:tt)+) => {
        &[]
    };
}

/// An entry point that encodes quantile buckets.
macro_rules! quantile_encode {
    ($name:literal, [$($file:literal),+]) => {
        stage!("quantile", $name, ["common/norm.wgsl", "bucketed/mean.wgsl"], [
            "bucketed/encode_params.wgsl",
            "common/half.wgsl",
            "bucketed/gradient.wgsl",
            "quantile/encode_span.wgsl",
            $($file),+
        ], ENCODE, 16384)
    };
}

/// An entry point that decodes quantile buckets.
macro_rules! quantile_decode {
    ($name:literal, [$($file:literal),+], $bindings:expr) => {
        stage!("quantile", $name, ["bucketed/decode_params.wgsl"], [
            "bucketed/decode_unit.wgsl",
            "quantile/decode_span.wgsl",
            $($file),+
        ], $bindings, 0)
    };
}

const fn entry(name: &'static str, source: &'static str, bindings: &'static [Binding], workgroup_bytes: u32) -> Shader {
    Shader { name, source, bindings, workgroup_size: 256, workgroup_bytes }
}

macro_rules! bucketed_table {
    ($($(#[$doc:meta])* $codec:ident {
        file: $file:literal,
        shaders: { maxima: $maxima:literal, sums: $sums:literal, looks: $looks:literal, files: $files:tt $(,)? },
        texts: $texts:tt,
        whole: $whole:tt,
        $($rest:tt)*
    })+) => {
        /// The bucketed codecs, a row each.
        const BUCKETED: &[[Shader; 4]] =
            &[$(of_buckets!($file, maxima: $maxima, sums: $sums, looks: $looks, $files)),+];

        /// Those that take tensors which are one bucket.
        const WHOLE: &[&[Shader]] =
            &[$(of_whole_tensors!($whole, $file, maxima: $maxima, sums: $sums, looks: $looks, $files)),+];
    };
}
gradwire_kernels::bucketed_codecs!(bucketed_table);

/// All other entry points.
const OTHERS: [Shader; 44] = [
    entry(
        "finite_scan",
        module!(
            "bucketed/encode_params.wgsl",
            "bucketed/whole.wgsl",
            "common/half.wgsl",
            "bucketed/gradient.wgsl",
            "bucketed/scan.wgsl",
            "bucketed/finite_scan.wgsl"
        ),
        SCAN,
        0,
    ),
    entry(
        "finite_scan_segments",
        module!(
            "bucketed/encode_params.wgsl",
            "bucketed/item.wgsl",
            "common/half.wgsl",
            "bucketed/gradient.wgsl",
            "bucketed/scan.wgsl",
            "bucketed/finite_scan_segments.wgsl"
        ),
        SCAN_SEGMENTS,
        0,
    ),
    entry(
        "topk_sample",
        topk!("topk/atomic_word.wgsl", "common/half.wgsl", "topk/elements.wgsl", "topk/sample.wgsl"),
        SAMPLE,
        8,
    ),
    entry(
        "topk_filter",
        topk!(
            "topk/atomic_word.wgsl",
            "common/half.wgsl",
            "topk/elements.wgsl",
            "topk/masks.wgsl",
            "topk/before.wgsl",
            "topk/filter_tile.wgsl",
            "topk/filter.wgsl"
        ),
        FILTER,
        5148,
    ),
    entry(
        "topk_sketch",
        topk!(
            "topk/atomic_word.wgsl",
            "common/half.wgsl",
            "topk/elements.wgsl",
            "topk/tiles.wgsl",
            "topk/narrow.wgsl",
            "topk/round.wgsl",
            "topk/sketch.wgsl"
        ),
        SAMPLE,
        8536,
    ),
    entry(
        "topk_filter_again",
        topk!(
            "topk/atomic_word.wgsl",
            "common/half.wgsl",
            "topk/elements.wgsl",
            "topk/masks.wgsl",
            "topk/before.wgsl",
            "topk/filter_tile.wgsl",
            "topk/filter_again.wgsl"
        ),
        FILTER,
        5148,
    ),
    entry(
        "topk_histogram",
        topk!(
            "topk/atomic_word.wgsl",
            "common/half.wgsl",
            "topk/elements.wgsl",
            "topk/tiles.wgsl",
            "topk/narrow.wgsl",
            "topk/round.wgsl",
            "topk/histogram.wgsl"
        ),
        SAMPLE,
        344,
    ),
    entry(
        "topk_count",
        topk!(
            "topk/atomic_word.wgsl",
            "common/half.wgsl",
            "topk/elements.wgsl",
            "topk/tiles.wgsl",
            "topk/narrow.wgsl",
            "topk/count.wgsl"
        ),
        SAMPLE,
        856,
    ),
    entry(
        "topk_emit",
        topk!(
            "topk/word.wgsl",
            "common/half.wgsl",
            "topk/elements.wgsl",
            "topk/tiles.wgsl",
            "topk/before.wgsl",
            "topk/emit.wgsl"
        ),
        EMIT,
        4608,
    ),
    entry(
        "topk_block",
        topk!("topk/word.wgsl", "common/half.wgsl", "topk/elements.wgsl", "topk/masks.wgsl", "topk/block.wgsl"),
        BLOCK,
        3136,
    ),
    entry("sparse_scatter", module!("topk/scatter.wgsl"), SCATTER, 0),
    entry("memory_momentum", module!("memory/momentum.wgsl"), MOMENTUM, 0),
    entry("rotate_blocks", module!("rotation/rotate.wgsl"), ROTATE, 16384),
    entry("dct_blocks", module!("rotation/dct.wgsl"), ROTATE, 16384),
    entry("dct_tiles", module!("rotation/tiles.wgsl"), ROTATE, 0),
    entry("sign_vote", module!("vote/vote.wgsl"), VOTE, 2048),
    entry("random_gather", module!("random/params.wgsl", "random/gather.wgsl"), RANDOM_GATHER, 0),
    entry("random_scatter", module!("random/params.wgsl", "random/scatter.wgsl"), RANDOM_SCATTER, 0),
    entry(
        "powersgd_factor",
        module!("powersgd/params.wgsl", "powersgd/word.wgsl", "powersgd/wide.wgsl", "powersgd/factor.wgsl"),
        FACTOR,
        13196,
    ),
    entry(
        "powersgd_left",
        module!(
            "powersgd/params.wgsl",
            "powersgd/word.wgsl",
            "powersgd/form_bindings.wgsl",
            "common/half.wgsl",
            "powersgd/gradient.wgsl",
            "powersgd/tile.wgsl",
            "powersgd/form.wgsl",
            "powersgd/left.wgsl"
        ),
        FORM,
        16384,
    ),
    entry(
        "powersgd_right",
        module!(
            "powersgd/params.wgsl",
            "powersgd/word.wgsl",
            "powersgd/form_bindings.wgsl",
            "common/half.wgsl",
            "powersgd/gradient.wgsl",
            "powersgd/tile.wgsl",
            "powersgd/form.wgsl",
            "powersgd/right.wgsl"
        ),
        FORM,
        2052,
    ),
    entry("powersgd_gather", module!("powersgd/params.wgsl", "powersgd/word.wgsl", "powersgd/gather.wgsl"), GATHER, 0),
    entry(
        "powersgd_expand",
        module!("powersgd/params.wgsl", "powersgd/word.wgsl", "powersgd/tile.wgsl", "powersgd/expand.wgsl"),
        EXPAND,
        1024,
    ),
    entry(
        "powersgd_plain",
        module!("powersgd/params.wgsl", "common/half.wgsl", "powersgd/gradient.wgsl", "powersgd/plain.wgsl"),
        PLAIN,
        0,
    ),
    entry("topk_settle", topk!("topk/word.wgsl", "topk/settle.wgsl"), SETTLE, 0),
    entry(
        "elias_measure",
        module!("entropy/params.wgsl", "entropy/codes.wgsl", "entropy/leave.wgsl", "entropy/measure.wgsl"),
        UNITS_MEASURE,
        2048,
    ),
    entry(
        "entropy_sums",
        module!("entropy/params.wgsl", "entropy/table.wgsl", "entropy/sums.wgsl"),
        ENTROPY_SUMS,
        1024,
    ),
    entry("entropy_offsets", module!("entropy/params.wgsl", "entropy/offsets.wgsl"), ENTROPY_OFFSETS, 1024),
    entry(
        "elias_write",
        module!(
            "entropy/params.wgsl",
            "entropy/codes.wgsl",
            "entropy/table.wgsl",
            "entropy/put.wgsl",
            "entropy/write.wgsl"
        ),
        UNITS_WRITE,
        10240,
    ),
    entry(
        "elias_read",
        module!("entropy/params.wgsl", "entropy/table.wgsl", "entropy/unit.wgsl", "entropy/read.wgsl"),
        UNITS_READ,
        11264,
    ),
    entry(
        "elias_delta_measure",
        module!("entropy/params.wgsl", "entropy/codes.wgsl", "entropy/leave.wgsl", "entropy/delta_measure.wgsl"),
        UNITS_MEASURE,
        2048,
    ),
    entry(
        "elias_delta_write",
        module!(
            "entropy/params.wgsl",
            "entropy/codes.wgsl",
            "entropy/table.wgsl",
            "entropy/put.wgsl",
            "entropy/delta_write.wgsl"
        ),
        UNITS_WRITE,
        10240,
    ),
    entry(
        "elias_delta_read",
        module!("entropy/params.wgsl", "entropy/table.wgsl", "entropy/unit.wgsl", "entropy/delta_read.wgsl"),
        UNITS_READ,
        11264,
    ),
    entry(
        "base3_measure",
        module!("entropy/params.wgsl", "entropy/plain.wgsl", "entropy/leave.wgsl", "entropy/base3_measure.wgsl"),
        UNITS_MEASURE,
        3072,
    ),
    entry(
        "base3_write",
        module!(
            "entropy/params.wgsl",
            "entropy/plain.wgsl",
            "entropy/table.wgsl",
            "entropy/put.wgsl",
            "entropy/base3_write.wgsl"
        ),
        UNITS_WRITE,
        11264,
    ),
    entry(
        "base3_read",
        module!("entropy/params.wgsl", "entropy/table.wgsl", "entropy/base3_read.wgsl"),
        UNITS_READ,
        4096,
    ),
    entry(
        "entropy_places_measure",
        module!(
            "entropy/params.wgsl",
            "entropy/codes.wgsl",
            "entropy/places.wgsl",
            "entropy/places_found.wgsl",
            "entropy/places_measure.wgsl"
        ),
        UNITS_MEASURE,
        1032,
    ),
    entry(
        "entropy_places_sums",
        module!("entropy/params.wgsl", "entropy/places.wgsl", "entropy/places_sums.wgsl"),
        ENTROPY_SUMS,
        1024,
    ),
    entry(
        "entropy_places_write",
        module!(
            "entropy/params.wgsl",
            "entropy/codes.wgsl",
            "entropy/places.wgsl",
            "entropy/places_found.wgsl",
            "entropy/places_set.wgsl",
            "entropy/places_write.wgsl"
        ),
        UNITS_WRITE,
        9216,
    ),
    entry(
        "entropy_places_read",
        module!("entropy/params.wgsl", "entropy/places.wgsl", "entropy/places_set.wgsl", "entropy/places_read.wgsl"),
        UNITS_READ,
        9216,
    ),
    quantile_encode!("encode", ["bucketed/whole.wgsl", "bucketed/encode.wgsl"]),
    quantile_decode!("decode", ["bucketed/whole.wgsl", "bucketed/decode.wgsl"], DECODE),
    quantile_encode!("encode_segments", ["bucketed/item.wgsl", "bucketed/encode_segments.wgsl"]),
    quantile_decode!("decode_segments", ["bucketed/item.wgsl", "bucketed/decode_segments.wgsl"], DECODE_SEGMENTS),
];

/// How many entry points there are.
const COUNT: usize = {
    let (mut count, mut codec) = (4 * BUCKETED.len() + OTHERS.len(), 0);
    while codec < WHOLE.len() {
        count += WHOLE[codec].len();
        codec += 1;
    }
    count
};

/// Every entry point.
pub const SHADERS: [Shader; COUNT] = {
    let mut all = [OTHERS[0]; COUNT];
    let (mut at, mut codec) = (0, 0);
    while codec < BUCKETED.len() {
        let mut of_codec = 0;
        while of_codec < 4 + WHOLE[codec].len() {
            all[at] = if of_codec < 4 { BUCKETED[codec][of_codec] } else { WHOLE[codec][of_codec - 4] };
            of_codec += 1;
            at += 1;
        }
        codec += 1;
    }
    let mut other = 0;
    while other < OTHERS.len() {
        all[at] = OTHERS[other];
        other += 1;
        at += 1;
    }
    all
};

/// The shader whose entry point has this name.
pub fn shader(name: &str) -> Option<&'static Shader> {
    const ALL: &[Shader] = &SHADERS;
    ALL.iter().find(|s| s.name == name)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use naga::valid::{Capabilities, ValidationFlags, Validator};
    use naga::{AddressSpace, Expression, Scalar, ScalarKind, StorageAccess, TypeInner};

    use super::*;

    fn parse(shader: &Shader) -> naga::Module {
        match naga::front::wgsl::parse_str(shader.source) {
            Ok(module) => module,
            Err(e) => panic!("{}: {}", shader.name, e.emit_to_string(shader.source)),
        }
    }

    #[test]
    fn every_shader_is_valid_without_any_optional_capability() {
        for shader in &SHADERS {
            let module = parse(shader);
            if let Err(e) = Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module) {
                panic!("{}: {}", shader.name, e.emit_to_string(shader.source));
            }
        }
    }

    #[test]
    fn the_table_says_what_the_sources_say() {
        for shader in &SHADERS {
            let module = parse(shader);
            let [entry] = &module.entry_points[..] else { panic!("{}: not one entry point", shader.name) };
            assert_eq!(entry.name, shader.name);
            assert_eq!(entry.workgroup_size, [shader.workgroup_size, 1, 1], "{}", shader.name);
            let mut buffers = 0;
            let mut workgroup = 0;
            for (_, variable) in module.global_variables.iter() {
                let bytes = module.types[variable.ty].inner.size(module.to_ctx());
                match (variable.space, &variable.binding) {
                    (AddressSpace::WorkGroup, _) => workgroup += bytes,
                    (AddressSpace::Uniform, Some(b)) => {
                        assert_eq!((b.group, b.binding), (0, 0), "{}", shader.name);
                        let expected = match shader.name {
                            "sparse_scatter" => 32,
                            "memory_momentum" | "sign_vote" | "dct_blocks" => 16,
                            "rotate_blocks" => 48,
                            "dct_tiles" => 36,
                            name if ["elias", "base3", "entropy"].iter().any(|prefix| name.starts_with(prefix)) => 20,
                            name if name.starts_with("topk") => 112,
                            name if name.starts_with("powersgd") => 96,
                            name if name.contains("_decode") => 48,
                            _ => 64,
                        };
                        assert_eq!(bytes, expected, "{}", shader.name);
                    }
                    (AddressSpace::Storage { access }, Some(b)) => {
                        assert_eq!(b.group, 0);
                        let binding = shader.bindings[b.binding as usize - 1];
                        let role = std::format!("{:?}", binding.role).to_lowercase();
                        assert_eq!(variable.name.as_deref(), Some(role.as_str()), "{}", shader.name);
                        assert_eq!(access.contains(StorageAccess::STORE), binding.writable, "{} {role}", shader.name);
                        buffers += 1;
                    }
                    // An invocation's own.
                    (AddressSpace::Private, None) => {}
                    other => panic!("{}: {other:?}", shader.name),
                }
            }
            assert_eq!(buffers, shader.bindings.len(), "{}", shader.name);
            assert_eq!(workgroup, shader.workgroup_bytes, "{}", shader.name);
            assert!(workgroup <= 16384, "{}", shader.name);
        }
    }

    #[test]
    fn no_shader_has_a_float_but_what_guesses_a_level() {
        let mut guesses = 0;
        // PowerSGD sums in f32: its bits are of one backend.
        for shader in SHADERS.iter().filter(|shader| !shader.name.starts_with("powersgd")) {
            let module = parse(shader);
            for (_, ty) in module.types.iter() {
                if let TypeInner::Scalar(Scalar { kind, .. }) | TypeInner::Vector { scalar: Scalar { kind, .. }, .. } =
                    ty.inner
                {
                    assert!(!matches!(kind, ScalarKind::Float | ScalarKind::AbstractFloat), "{}", shader.name);
                }
            }
            // A bitcast is of no type of the module.
            let entries = module.entry_points.iter().map(|entry| &entry.function);
            for function in module.functions.iter().map(|(_, function)| function).chain(entries) {
                let is_float = |e: &Expression| matches!(e, Expression::As { kind: ScalarKind::Float, .. });
                if function.expressions.iter().any(|(_, expression)| is_float(expression)) {
                    let name = function.name.as_deref();
                    let guesses_here = name.is_some_and(|name| name.starts_with("guess"));
                    let allowed = guesses_here || name == Some("code") && shader.name.starts_with("uniform");
                    assert!(allowed, "{}: {name:?}", shader.name);
                    guesses += 1;
                }
            }
        }
        assert!(guesses > 0, "the guesses are not found");
    }

    #[test]
    fn shaders_are_found_by_name() {
        for expected in &SHADERS {
            assert_eq!(shader(expected.name).map(|s| s.name), Some(expected.name));
        }
        assert!(shader("clear").is_none());
    }
}
