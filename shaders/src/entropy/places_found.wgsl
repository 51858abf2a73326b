// The codes of a lane of the unit `k` of 256 of its team, and which of them have a level that is not zero: a bit each.
struct Lane {
    codes: array<u32, 8>,
    found: u32,
}

fn lane_of(group: u32, thread: u32, k: u32) -> Lane {
    var own: Lane;
    let unit = group * PARTS + (thread >> 5u) * OWN + k;
    if unit < params.fixed {
        let at = unit * 8u * params.bits;
        let low = unpack(at, thread & 31u, 0u);
        let high = unpack(at, thread & 31u, 1u);
        own.codes = array<u32, 8>(low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w);
        let most = (1u << (params.bits - 1u)) - 1u;
        for (var slot = 0u; slot < 8u; slot++) {
            if (own.codes[slot] & most) != 0u {
                own.found = own.found | (1u << slot);
            }
        }
    }
    return own;
}
