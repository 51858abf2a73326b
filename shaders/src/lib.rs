//! Gradwire's kernels in WGSL, and a table that describes each entry point.
//!
//! WGSL fixes neither the rounding of `f32` nor what happens to subnormal numbers, and lets a compiler contract operations
//! and assume that there are no NaNs. The shaders here have no `f32` at all: numbers are the `u32` of their bits, and
//! `soft.wgsl` does what IEEE 754 binary32 does in integers. So their bytes are the CPU's on every device. PowerSGD alone has
//! sums in `f32`, of which no two backends have to have the same bits; `powersgd_params.wgsl` says how it keeps to that.
//!
//! Every shader is one module with one entry point. Its parameter struct (of `gradwire-kernels`) is the uniform at `@group(0) @binding(0)`; its buffers follow from binding 1 on.

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

/// A module from its files; `soft.wgsl` is in all of them.
macro_rules! module {
    ($($file:literal),+) => {
        concat!(include_str!("soft.wgsl"), $("\n", include_str!($file)),+)
    };
}

/// A module of top-k.
macro_rules! topk {
    ($($file:literal),+) => {
        module!("topk_params.wgsl", "topk_segments.wgsl", $($file),+)
    };
}

const fn entry(name: &'static str, source: &'static str, bindings: &'static [Binding], workgroup_bytes: u32) -> Shader {
    Shader { name, source, bindings, workgroup_size: 256, workgroup_bytes }
}

/// Every entry point.
pub const SHADERS: [Shader; 36] = [
    entry(
        "finite_scan",
        module!(
            "encode_params.wgsl",
            "encode_whole.wgsl",
            "bind_scan.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "scan.wgsl",
            "finite_scan.wgsl"
        ),
        SCAN,
        0,
    ),
    entry(
        "qsgd_stats",
        module!(
            "encode_params.wgsl",
            "encode_whole.wgsl",
            "bind_stats.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "norm.wgsl",
            "qsgd_statistic.wgsl",
            "qsgd_stats.wgsl"
        ),
        STATS,
        4096,
    ),
    entry(
        "qsgd_combine",
        module!(
            "encode_params.wgsl",
            "bind_combine.wgsl",
            "norm.wgsl",
            "qsgd.wgsl",
            "qsgd_fold.wgsl",
            "qsgd_combine.wgsl"
        ),
        COMBINE,
        28,
    ),
    entry(
        "qsgd_encode",
        module!(
            "encode_params.wgsl",
            "encode_whole.wgsl",
            "bind_encode.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "draws.wgsl",
            "norm.wgsl",
            "qsgd.wgsl",
            "qsgd_statistic.wgsl",
            "statistic_whole.wgsl",
            "qsgd_buckets.wgsl",
            "encode.wgsl",
            "qsgd_encode.wgsl"
        ),
        ENCODE,
        12288,
    ),
    entry(
        "qsgd_decode",
        module!(
            "decode_params.wgsl",
            "decode_whole.wgsl",
            "bind_decode.wgsl",
            "qsgd.wgsl",
            "decode.wgsl",
            "qsgd_decoders.wgsl",
            "qsgd_decode.wgsl"
        ),
        DECODE,
        1024,
    ),
    entry(
        "uniform_stats",
        module!(
            "encode_params.wgsl",
            "encode_whole.wgsl",
            "bind_stats.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "uniform_statistic.wgsl",
            "uniform_stats.wgsl"
        ),
        STATS,
        2048,
    ),
    entry(
        "uniform_combine",
        module!("encode_params.wgsl", "bind_combine.wgsl", "uniform.wgsl", "uniform_fold.wgsl", "uniform_combine.wgsl"),
        COMBINE,
        8,
    ),
    entry(
        "uniform_encode",
        module!(
            "encode_params.wgsl",
            "encode_whole.wgsl",
            "bind_encode.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "draws.wgsl",
            "uniform.wgsl",
            "uniform_statistic.wgsl",
            "statistic_whole.wgsl",
            "uniform_buckets.wgsl",
            "encode.wgsl",
            "uniform_encode.wgsl"
        ),
        ENCODE,
        14336,
    ),
    entry(
        "uniform_decode",
        module!(
            "decode_params.wgsl",
            "decode_whole.wgsl",
            "bind_decode.wgsl",
            "uniform.wgsl",
            "decode.wgsl",
            "uniform_decoders.wgsl",
            "uniform_decode.wgsl"
        ),
        DECODE,
        1024,
    ),
    entry(
        "finite_scan_segments",
        module!(
            "encode_params.wgsl",
            "encode_item.wgsl",
            "bind_scan_segments.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "scan.wgsl",
            "finite_scan_segments.wgsl"
        ),
        SCAN_SEGMENTS,
        0,
    ),
    entry(
        "qsgd_encode_segments",
        module!(
            "encode_params.wgsl",
            "encode_item.wgsl",
            "bind_encode.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "draws.wgsl",
            "norm.wgsl",
            "qsgd.wgsl",
            "qsgd_statistic.wgsl",
            "statistic_item.wgsl",
            "qsgd_buckets.wgsl",
            "encode.wgsl",
            "qsgd_encode_segments.wgsl"
        ),
        ENCODE,
        12288,
    ),
    entry(
        "qsgd_decode_segments",
        module!(
            "decode_params.wgsl",
            "decode_item.wgsl",
            "bind_decode_segments.wgsl",
            "qsgd.wgsl",
            "decode.wgsl",
            "qsgd_decoders.wgsl",
            "qsgd_decode_segments.wgsl"
        ),
        DECODE_SEGMENTS,
        1024,
    ),
    entry(
        "uniform_encode_segments",
        module!(
            "encode_params.wgsl",
            "encode_item.wgsl",
            "bind_encode.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "draws.wgsl",
            "uniform.wgsl",
            "uniform_statistic.wgsl",
            "statistic_item.wgsl",
            "uniform_buckets.wgsl",
            "encode.wgsl",
            "uniform_encode_segments.wgsl"
        ),
        ENCODE,
        14336,
    ),
    entry(
        "uniform_decode_segments",
        module!(
            "decode_params.wgsl",
            "decode_item.wgsl",
            "bind_decode_segments.wgsl",
            "uniform.wgsl",
            "decode.wgsl",
            "uniform_decoders.wgsl",
            "uniform_decode_segments.wgsl"
        ),
        DECODE_SEGMENTS,
        1024,
    ),
    entry(
        "topk_sample",
        topk!("topk_atomic_word.wgsl", "half.wgsl", "topk_elements.wgsl", "topk_sample.wgsl"),
        SAMPLE,
        8,
    ),
    entry(
        "topk_filter",
        topk!(
            "topk_atomic_word.wgsl",
            "half.wgsl",
            "topk_elements.wgsl",
            "topk_masks.wgsl",
            "topk_before.wgsl",
            "topk_filter_tile.wgsl",
            "topk_filter.wgsl"
        ),
        FILTER,
        5148,
    ),
    entry(
        "topk_sketch",
        topk!(
            "topk_atomic_word.wgsl",
            "half.wgsl",
            "topk_elements.wgsl",
            "topk_tiles.wgsl",
            "topk_narrow.wgsl",
            "topk_round.wgsl",
            "topk_sketch.wgsl"
        ),
        SAMPLE,
        8536,
    ),
    entry(
        "topk_filter_again",
        topk!(
            "topk_atomic_word.wgsl",
            "half.wgsl",
            "topk_elements.wgsl",
            "topk_masks.wgsl",
            "topk_before.wgsl",
            "topk_filter_tile.wgsl",
            "topk_filter_again.wgsl"
        ),
        FILTER,
        5148,
    ),
    entry(
        "topk_histogram",
        topk!(
            "topk_atomic_word.wgsl",
            "half.wgsl",
            "topk_elements.wgsl",
            "topk_tiles.wgsl",
            "topk_narrow.wgsl",
            "topk_round.wgsl",
            "topk_histogram.wgsl"
        ),
        SAMPLE,
        344,
    ),
    entry(
        "topk_count",
        topk!(
            "topk_atomic_word.wgsl",
            "half.wgsl",
            "topk_elements.wgsl",
            "topk_tiles.wgsl",
            "topk_narrow.wgsl",
            "topk_count.wgsl"
        ),
        SAMPLE,
        856,
    ),
    entry(
        "topk_emit",
        topk!(
            "topk_word.wgsl",
            "half.wgsl",
            "topk_elements.wgsl",
            "topk_tiles.wgsl",
            "topk_before.wgsl",
            "topk_emit.wgsl"
        ),
        EMIT,
        4608,
    ),
    entry(
        "topk_block",
        topk!("topk_word.wgsl", "half.wgsl", "topk_elements.wgsl", "topk_masks.wgsl", "topk_block.wgsl"),
        BLOCK,
        3136,
    ),
    entry("sparse_scatter", module!("sparse_scatter.wgsl"), SCATTER, 0),
    entry(
        "powersgd_factor",
        module!("powersgd_params.wgsl", "powersgd_word.wgsl", "powersgd_wide.wgsl", "powersgd_factor.wgsl"),
        FACTOR,
        13196,
    ),
    entry(
        "powersgd_left",
        module!(
            "powersgd_params.wgsl",
            "powersgd_word.wgsl",
            "bind_powersgd_form.wgsl",
            "half.wgsl",
            "powersgd_gradient.wgsl",
            "powersgd_tile.wgsl",
            "powersgd_form.wgsl",
            "powersgd_left.wgsl"
        ),
        FORM,
        16384,
    ),
    entry(
        "powersgd_right",
        module!(
            "powersgd_params.wgsl",
            "powersgd_word.wgsl",
            "bind_powersgd_form.wgsl",
            "half.wgsl",
            "powersgd_gradient.wgsl",
            "powersgd_tile.wgsl",
            "powersgd_form.wgsl",
            "powersgd_right.wgsl"
        ),
        FORM,
        2052,
    ),
    entry("powersgd_gather", module!("powersgd_params.wgsl", "powersgd_word.wgsl", "powersgd_gather.wgsl"), GATHER, 0),
    entry(
        "powersgd_expand",
        module!("powersgd_params.wgsl", "powersgd_word.wgsl", "powersgd_tile.wgsl", "powersgd_expand.wgsl"),
        EXPAND,
        1024,
    ),
    entry(
        "powersgd_plain",
        module!("powersgd_params.wgsl", "half.wgsl", "powersgd_gradient.wgsl", "powersgd_plain.wgsl"),
        PLAIN,
        0,
    ),
    entry(
        "qsgd_stats_segments",
        module!(
            "encode_params.wgsl",
            "encode_item.wgsl",
            "bind_stats_segments.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "norm.wgsl",
            "qsgd_statistic.wgsl",
            "qsgd_stats_segments.wgsl"
        ),
        STATS_SEGMENTS,
        4096,
    ),
    entry(
        "qsgd_combine_segments",
        module!(
            "encode_params.wgsl",
            "bind_combine_segments.wgsl",
            "norm.wgsl",
            "qsgd.wgsl",
            "qsgd_fold.wgsl",
            "qsgd_combine_segments.wgsl"
        ),
        COMBINE_SEGMENTS,
        28,
    ),
    entry(
        "qsgd_encode_tensors",
        module!(
            "encode_params.wgsl",
            "encode_item.wgsl",
            "bind_encode.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "draws.wgsl",
            "norm.wgsl",
            "qsgd.wgsl",
            "qsgd_statistic.wgsl",
            "statistic_item.wgsl",
            "qsgd_buckets.wgsl",
            "encode.wgsl",
            "qsgd_encode_tensors.wgsl"
        ),
        ENCODE,
        12288,
    ),
    entry(
        "uniform_stats_segments",
        module!(
            "encode_params.wgsl",
            "encode_item.wgsl",
            "bind_stats_segments.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "uniform_statistic.wgsl",
            "uniform_stats_segments.wgsl"
        ),
        STATS_SEGMENTS,
        2048,
    ),
    entry(
        "uniform_combine_segments",
        module!(
            "encode_params.wgsl",
            "bind_combine_segments.wgsl",
            "uniform.wgsl",
            "uniform_fold.wgsl",
            "uniform_combine_segments.wgsl"
        ),
        COMBINE_SEGMENTS,
        8,
    ),
    entry(
        "uniform_encode_tensors",
        module!(
            "encode_params.wgsl",
            "encode_item.wgsl",
            "bind_encode.wgsl",
            "half.wgsl",
            "gradient.wgsl",
            "draws.wgsl",
            "uniform.wgsl",
            "uniform_statistic.wgsl",
            "statistic_item.wgsl",
            "uniform_buckets.wgsl",
            "encode.wgsl",
            "uniform_encode_tensors.wgsl"
        ),
        ENCODE,
        14336,
    ),
    entry("topk_settle", topk!("topk_word.wgsl", "topk_settle.wgsl"), SETTLE, 0),
];

/// The shader whose entry point has this name.
pub fn shader(name: &str) -> Option<&'static Shader> {
    const ALL: &[Shader] = &SHADERS;
    ALL.iter().find(|s| s.name == name)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use naga::valid::{Capabilities, ValidationFlags, Validator};
    use naga::{AddressSpace, Scalar, ScalarKind, StorageAccess, TypeInner};

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
    fn no_shader_has_a_float() {
        // PowerSGD sums in f32: its bits are of one backend.
        for shader in SHADERS.iter().filter(|shader| !shader.name.starts_with("powersgd")) {
            for (_, ty) in parse(shader).types.iter() {
                if let TypeInner::Scalar(Scalar { kind, .. }) | TypeInner::Vector { scalar: Scalar { kind, .. }, .. } =
                    ty.inner
                {
                    assert!(!matches!(kind, ScalarKind::Float | ScalarKind::AbstractFloat), "{}", shader.name);
                }
            }
        }
    }

    #[test]
    fn shaders_are_found_by_name() {
        for expected in &SHADERS {
            assert_eq!(shader(expected.name).map(|s| s.name), Some(expected.name));
        }
        assert!(shader("clear").is_none());
    }
}
