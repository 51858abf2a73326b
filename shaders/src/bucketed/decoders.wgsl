// What is made of the scalars on the wire, for each bucket of a span; the kernel brings their number.
var<workgroup> decoders: array<vec4<u32>, DECODERS>;

// The decoders of four rows, of which the first is a multiple of 4.
fn decoders_of(row: u32, shift: u32) -> Columns {
    let a = decoders[row >> shift];
    if shift >= 2u {
        return repeated(a);
    }
    return columns(a, decoders[(row + 1u) >> shift], decoders[(row + 2u) >> shift], decoders[(row + 3u) >> shift]);
}
