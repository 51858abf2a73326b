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

// What: folds the QSGD statistics of a tensor that is one bucket into its norm, and writes the scalar on the wire.
// Arguments: EncodeParams; scalars (1 word), workspace (64 words of which the first becomes the norm, then `partials` of 4).
// Thread mapping: thread k takes partial statistics k, k + 256, ...; thread 0 makes the norm.
// Workgroup memory: 7 words, 28 bytes.
// Launch contract: 1 workgroup.
// Traffic: every partial statistic once, with L2 once more from cache.
// Determinism: integers only; the sum is exact in 96 bits, so it does not depend on its order.
// Edge cases: NaN or infinity anywhere makes the norm NaN; a norm too large for binary32 is the largest finite number.
@compute @workgroup_size(256)
fn qsgd_combine(@builtin(local_invocation_index) thread: u32) {
    if thread == 0u {
        atomicStore(&largest, 0u);
    }
    if thread < 6u {
        atomicStore(&limbs[thread], 0u);
    }
    workgroupBarrier();
    var most = 0u;
    for (var p = thread; p < params.partials; p += 256u) {
        most = max(most, workspace[FINAL_WORDS + p * 4u]);
    }
    atomicMax(&largest, most);
    workgroupBarrier();
    let top = atomicLoad(&largest);
    let to = alignment(top);
    if has(FLAG_L2) && top < INF {
        var sum = vec3<u32>(0u);
        for (var p = thread; p < params.partials; p += 256u) {
            let at = FINAL_WORDS + p * 4u;
            let by = 2u * min(to - alignment(workspace[at]), 31u);
            let part = shift64(vec2<u32>(workspace[at + 1u], workspace[at + 2u]), by);
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
        workspace[0] = norm;
        scalars[0] = wire_of(norm, params.beta);
    }
}
