// What a launch over one tensor draws from, and what it scales its scalars by: the parameters say it.

fn first_unit() -> u32 {
    return params.first_unit;
}

fn tensor() -> u32 {
    return params.tensor;
}

fn step() -> vec2<u32> {
    return vec2<u32>(params.step_low, params.step_high);
}

fn factor() -> u32 {
    return params.beta;
}
