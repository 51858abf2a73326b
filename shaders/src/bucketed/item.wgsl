// What a workgroup of a launch over many tensors works on: an item of the table says it.
//   `gradwire_kernels::params::item`
// has the words.

var<private> at: u32;

// Comes before all else.
fn open_item(item: u32) {
    at = 64u + (first_item() + item) * 8u;
}

fn extent() -> u32 {
    return workspace[at + 1u];
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
