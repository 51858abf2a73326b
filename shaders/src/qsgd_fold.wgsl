var<workgroup> largest: atomic<u32>;
// The sum in limbs of 16 bits, each with room for its carries.
var<workgroup> limbs: array<atomic<u32>, 6>;

// The sum of the threads' sums, and its norm: while it takes more than 62 bits, a quarter of it and a doubling.
fn norm_of_limbs(to: u32) -> u32 {
    var words = vec3<u32>(0u);
    var carry = atomicLoad(&limbs[0]);
    words.x = carry & 0xffffu;
    carry = (carry >> 16u) + atomicLoad(&limbs[1]);
    words.x = words.x | (carry << 16u);
    carry = (carry >> 16u) + atomicLoad(&limbs[2]);
    words.y = carry & 0xffffu;
    carry = (carry >> 16u) + atomicLoad(&limbs[3]);
    words.y = words.y | (carry << 16u);
    carry = (carry >> 16u) + atomicLoad(&limbs[4]);
    words.z = carry & 0xffffu;
    carry = (carry >> 16u) + atomicLoad(&limbs[5]);
    words.z = words.z | (carry << 16u);
    var halvings = 0u;
    // At most 17 turns: 96 bits.
    while words.z != 0u || (words.y >> 30u) != 0u {
        words.x = (words.x >> 2u) | (words.y << 30u);
        words.y = (words.y >> 2u) | (words.z << 30u);
        words.z = words.z >> 2u;
        halvings = halvings + 1u;
    }
    return norm_from_sum(words.xy, halvings, to);
}

// Folds the partial statistics of a tensor that is one bucket; what `bind_combine` and `bind_combine_segments` bring tells
// where they are, and where what they come to goes.
fn combine(thread: u32) {
    if thread == 0u {
        atomicStore(&largest, 0u);
    }
    if thread < 6u {
        atomicStore(&limbs[thread], 0u);
    }
    workgroupBarrier();
    var most = 0u;
    for (var p = thread; p < partials(); p += 256u) {
        most = max(most, partial(p, 0u));
    }
    atomicMax(&largest, most);
    workgroupBarrier();
    let top = atomicLoad(&largest);
    let to = alignment(top);
    if has(FLAG_L2) && top < INF {
        var sum = vec3<u32>(0u);
        for (var p = thread; p < partials(); p += 256u) {
            let by = 2u * min(to - alignment(partial(p, 0u)), 31u);
            let part = shift64(vec2<u32>(partial(p, 1u), partial(p, 2u)), by);
            let next = add64(sum.xy, part);
            // The 64 bits wrapped where they are now less than what was added.
            let wrapped = next.y < part.y || (next.y == part.y && next.x < part.x);
            sum = vec3<u32>(next, sum.z + select(0u, 1u, wrapped));
        }
        atomicAdd(&limbs[0], sum.x & 0xffffu);
        atomicAdd(&limbs[1], sum.x >> 16u);
        atomicAdd(&limbs[2], sum.y & 0xffffu);
        atomicAdd(&limbs[3], sum.y >> 16u);
        atomicAdd(&limbs[4], sum.z & 0xffffu);
        atomicAdd(&limbs[5], sum.z >> 16u);
    }
    workgroupBarrier();
    if thread == 0u {
        var norm = top;
        if top >= INF {
            norm = NAN;
        } else if has(FLAG_L2) && top != 0u {
            norm = norm_of_limbs(to);
        }
        keep(0u, norm);
        send(0u, wire_of(norm, beta()));
    }
}
