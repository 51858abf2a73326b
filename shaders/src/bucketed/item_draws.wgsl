// What an item draws from, and what it scales its scalars by.

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

fn factor() -> u32 {
    return workspace[at + 6u];
}
