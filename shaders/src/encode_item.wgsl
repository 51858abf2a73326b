// What a workgroup of a launch over many tensors works on: an item of the table says it. `gradwire_kernels::params::item`
// has the words.

var<private> at: u32;

// Comes before all else.
fn open_item(group: u32) {
    at = 64u + (params.partials + group) * 8u;
}

fn extent() -> u32 {
    return workspace[at + 1u];
}

fn first_unit() -> u32 {
    return workspace[at + 2u];
}

fn tensor() -> u32 {
    return params.tensor + workspace[at + 3u];
}

fn step() -> vec2<u32> {
    let low = params.step_low + workspace[0];
    let carry = select(0u, 1u, low < params.step_low);
    return vec2<u32>(low, params.step_high + workspace[1] + carry);
}

fn beta() -> u32 {
    return workspace[at + 6u];
}

fn first_element() -> u32 {
    return workspace[at];
}

fn first_scalar() -> u32 {
    return workspace[at + 4u];
}

fn first_code() -> u32 {
    return workspace[at + 5u];
}
