// What a launch over one tensor works on: the parameters say it.

fn extent() -> u32 {
    return params.n;
}

fn first_unit() -> u32 {
    return params.first_unit;
}

fn tensor() -> u32 {
    return params.tensor;
}

fn step() -> vec2<u32> {
    return vec2<u32>(params.step_low, params.step_high);
}

fn beta() -> u32 {
    return params.beta;
}

// Where the launch begins in the gradient and the residual, the scalars, and the codes.
fn first_element() -> u32 {
    return 0u;
}

fn first_scalar() -> u32 {
    return 0u;
}

fn first_code() -> u32 {
    return 0u;
}
