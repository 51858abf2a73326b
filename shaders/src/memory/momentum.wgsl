// `gradwire_kernels::params::MomentumParams`, word for word.
struct MomentumParams {
    first: u32,
    end: u32,
    factor: u32,
    gain: u32,
}

@group(0) @binding(0) var<uniform> params: MomentumParams;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;

// What: adds a gradient to a momentum (`kernels/memory.rs`).
// Arguments: MomentumParams; input (the gradient), residual (the momentum), a word per element.
// Thread mapping: a workgroup takes 2048 elements; of invocation i the elements 256 j + i.
// Workgroup memory: none.
// Launch contract: ceil(end / 2048) workgroups.
// Traffic: 12 bytes per element.
// Determinism: an element is one invocation's.
// Edge cases: a factor of 1 of the gradient leaves its bits. A momentum that is not finite counts as 0; a NaN is written as the one NaN.
@compute @workgroup_size(256)
fn memory_momentum(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) invocation: vec3<u32>,
) {
    let base = group.x * 2048u + invocation.x;
    for (var slot = 0u; slot < 8u; slot += 4u) {
        let own = vec4<u32>(base) + 256u * (slot + vec4<u32>(0u, 1u, 2u, 3u));
        var gradient = vec4<u32>();
        var before = vec4<u32>();
        for (var i = 0u; i < 4u; i++) {
            if own[i] >= params.first && own[i] < params.end {
                gradient[i] = input[own[i]];
                before[i] = residual[own[i]];
            }
        }
        if params.gain != 0x3f800000u {
            gradient = f_mul(vec4<u32>(params.gain), gradient);
        }
        let lost = (before & vec4<u32>(MAGNITUDE)) >= vec4<u32>(INF);
        let sum = f_add(gradient, f_mul(vec4<u32>(params.factor), select(before, vec4<u32>(), lost)));
        let none = (gradient & vec4<u32>(MAGNITUDE)) > vec4<u32>(INF);
        let next = select(sum, select(gradient, vec4<u32>(NAN), none), lost);
        for (var i = 0u; i < 4u; i++) {
            if own[i] >= params.first && own[i] < params.end {
                residual[own[i]] = next[i];
            }
        }
    }
}
