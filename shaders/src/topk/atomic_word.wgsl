fn word(at: u32) -> u32 {
    return atomicLoad(&workspace[at]);
}
