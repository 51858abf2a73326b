//! The shaders as a table: one for every kernel, and what naga's validation of them does not cover.

use gradwire::plan::Kernel;
use gradwire_shaders::SHADERS;
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// So `cargo xtask shaders` writes every module that the host can ask for, and none that it cannot.
#[test]
fn the_table_has_the_kernels_and_nothing_else() {
    let shaders: Vec<&str> = SHADERS.iter().map(|shader| shader.name).collect();
    // Behind them is what WebGPU does not promise to bring to an end.
    let (shared, of_cuda) = Kernel::ALL.split_at(shaders.len());
    assert_eq!(shaders, shared.iter().map(|kernel| kernel.name()).collect::<Vec<_>>());
    assert_eq!(of_cuda, [Kernel::TopKRest]);
}

/// Why `tests/tint` exists: naga, and so every test of the WGPU backend, accepts a barrier that only some invocations
/// reach. `tests/tint/check.mjs` shows that Tint refuses the same file. Where naga has learnt to, the check with Tint is
/// a second opinion and no longer the only one, and this test and its file can go.
#[test]
fn naga_accepts_a_barrier_in_non_uniform_flow() {
    let source = include_str!("../tint/planted/nonuniform_barrier.wgsl");
    let module = naga::front::wgsl::parse_str(source).unwrap_or_else(|e| panic!("{}", e.emit_to_string(source)));
    let result = Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module);
    assert!(result.is_ok(), "naga refuses it now: {result:?}");
}
