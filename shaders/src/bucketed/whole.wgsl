// What a launch over one tensor works on: the parameters say it.

fn extent() -> u32 {
    return params.n;
}

// Where the launch begins in the gradient, the residual and the output, in the scalars, and in the codes.
fn first_element() -> u32 {
    return 0u;
}

fn first_scalar() -> u32 {
    return 0u;
}

fn first_code() -> u32 {
    return 0u;
}
