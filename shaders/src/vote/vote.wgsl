// The majority of many payloads of signs: `kernels-gpu/src/kernels/vote.rs`.
//
// Arguments: VoteParams; input (the codes of `payloads` payloads, `words` words each), output (`n` f32).
// Threads: a workgroup takes 8192 elements, and counts 32 of them per thread. Traffic: 4 bytes per element, and a bit per payload.

// `gradwire_kernels::params::VoteParams`, word for word.
struct VoteParams {
    n: u32,
    payloads: u32,
    words: u32,
    reserved: u32,
}

const PLANES: u32 = 16u;

@group(0) @binding(0) var<uniform> params: VoteParams;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

// Where more than half of the payloads have a one, and where half of them have.
var<workgroup> above: array<u32, 256>;
var<workgroup> equal: array<u32, 256>;

@compute @workgroup_size(256)
fn sign_vote(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let word = group.x * 256u + thread;
    var planes: array<u32, PLANES>;
    if word < params.words {
        for (var voter = 0u; voter < params.payloads; voter++) {
            var carry = input[voter * params.words + word];
            for (var plane = 0u; plane < PLANES; plane++) {
                let both = planes[plane] & carry;
                planes[plane] ^= carry;
                carry = both;
            }
        }
    }
    let half = params.payloads / 2u;
    var more = 0u;
    var same = 0xffffffffu;
    for (var turn = 0u; turn < PLANES; turn++) {
        let plane = PLANES - 1u - turn;
        let digit = 0u - ((half >> plane) & 1u);
        more |= same & planes[plane] & ~digit;
        same &= ~(planes[plane] ^ digit);
    }
    above[thread] = more;
    equal[thread] = select(same, 0u, (params.payloads & 1u) == 1u);
    workgroupBarrier();
    // Element `thread` of each unit: its lane's byte, and its slot's bit in it.
    let lane = thread & 31u;
    let bit = 8u * (lane & 3u) + (thread >> 5u);
    for (var unit = 0u; unit < 32u; unit++) {
        let at = group.x * 8192u + unit * 256u + thread;
        if at < params.n {
            let word_of = unit * 8u + (lane >> 2u);
            let sides = select(0xbf800000u, 0x3f800000u, ((above[word_of] >> bit) & 1u) == 1u);
            output[at] = select(sides, 0u, ((equal[word_of] >> bit) & 1u) == 1u);
        }
    }
}
