// Elements of a gradient, plus the residual's, as bits of binary32.
//
// A workgroup has 8 teams of 32 lanes; a team takes 4 units of 256 elements one after another, and a lane takes the 8
// elements of a unit that are 32 apart: neighbours in a team read neighbours, and what a lane encodes it also packs.
// Four of the 8 elements are taken at a time: they are the components of a vector, and 4 rows of the span.

const TEAM_ELEMENTS: u32 = 1024u;
const UNIT: u32 = 256u;

// Indices of the four elements of a lane, from the first on.
fn elements(first: u32) -> vec4<u32> {
    return vec4<u32>(first) + vec4<u32>(0u, 32u, 64u, 96u);
}

// Whether elements are in the launch.
fn exist(e: vec4<u32>) -> vec4<bool> {
    return e < vec4<u32>(extent());
}

// The gradient alone of elements; of one beyond the last, the last one's.
fn input_of(wanted: vec4<u32>) -> vec4<u32> {
    let e = min(wanted, vec4<u32>(extent() - 1u)) + vec4<u32>(first_element());
    if params.dtype == 0u {
        return vec4<u32>(input[e.x], input[e.y], input[e.z], input[e.w]);
    }
    let w = e >> vec4<u32>(1u);
    let words = vec4<u32>(input[w.x], input[w.y], input[w.z], input[w.w]);
    let half = (words >> ((e & vec4<u32>(1u)) << vec4<u32>(4u))) & vec4<u32>(0xffffu);
    if params.dtype == 1u {
        return from_f16(half);
    }
    return half << vec4<u32>(16u);
}

// The values of elements; of one beyond the last, the last one's.
fn load(wanted: vec4<u32>) -> vec4<u32> {
    let v = input_of(wanted);
    if !has(FLAG_FEEDBACK) {
        return v;
    }
    let e = min(wanted, vec4<u32>(extent() - 1u)) + vec4<u32>(first_element());
    return f_add(v, vec4<u32>(residual[e.x], residual[e.y], residual[e.z], residual[e.w]));
}

// The values of elements where they exist. Of those beyond the last no residual is read: the last one's is its own
// invocation's, which writes it meanwhile.
fn load_own(own: vec4<u32>, here: vec4<bool>) -> vec4<u32> {
    let v = input_of(own);
    let e = own + vec4<u32>(first_element());
    if !has(FLAG_FEEDBACK) {
        return v;
    }
    var old = vec4<u32>(0u);
    if here.x {
        old.x = residual[e.x];
    }
    if here.y {
        old.y = residual[e.y];
    }
    if here.z {
        old.z = residual[e.z];
    }
    if here.w {
        old.w = residual[e.w];
    }
    return f_add(v, old);
}
