// What a launch over one tensor works on: the parameters say it.

fn extent() -> u32 {
    return params.n;
}

// Where the launch begins in the output, the scalars, and the codes.
fn first_element() -> u32 {
    return 0u;
}

fn first_scalar() -> u32 {
    return 0u;
}

fn first_code() -> u32 {
    return 0u;
}
