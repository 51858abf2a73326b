// The workspace, where no two workgroups write one word.

fn word(at: u32) -> u32 {
    return workspace[at];
}

fn number(at: u32) -> f32 {
    return bitcast<f32>(workspace[at]);
}
