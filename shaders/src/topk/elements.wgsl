// Elements of a gradient for top-k: a half stays as it is, anything else is the bits of binary32.

// The integers that order elements: a larger magnitude has a larger key, all NaN have one.
fn keys(raw: vec4<u32>) -> vec4<u32> {
    var magnitude = MAGNITUDE;
    var nan = INF + 1u;
    if is_half() {
        magnitude = 0x7fffu;
        nan = select(0x7f81u, 0x7c01u, params.dtype == 1u);
    }
    return min(raw & vec4<u32>(magnitude), vec4<u32>(nan));
}

fn key(raw: u32) -> u32 {
    return keys(vec4<u32>(raw)).x;
}

// As binary32.
fn bits_of(raw: u32) -> u32 {
    if !is_half() {
        return raw;
    }
    if params.dtype == 1u {
        return from_f16(vec4<u32>(raw)).x;
    }
    return raw << 16u;
}

// The gradient alone, of elements that are bound.
fn input_of(at: vec4<u32>) -> vec4<u32> {
    if params.dtype == 0u {
        return vec4<u32>(input[at.x], input[at.y], input[at.z], input[at.w]);
    }
    let w = at >> vec4<u32>(1u);
    let words = vec4<u32>(input[w.x], input[w.y], input[w.z], input[w.w]);
    let half = (words >> ((at & vec4<u32>(1u)) << vec4<u32>(4u))) & vec4<u32>(0xffffu);
    if is_half() {
        return half;
    }
    if params.dtype == 1u {
        return from_f16(half);
    }
    return half << vec4<u32>(16u);
}

// What was sent last of a segment, and is yet to be taken off its residual: elements above the key, and those that have it
// up to the index. Without segments it is nothing.
fn sent_of(index: u32) -> vec2<u32> {
    if !has(FLAG_LAZY) || params.segments == 0u {
        return vec2<u32>(NO_KEY, 0u);
    }
    return vec2<u32>(table(index, SENT_KEY), table(index, SENT_INDEX));
}

// Elements, where they are there: gradient + residual less what was sent, or with `summed` what the residual holds by then, or the gradient. Of those that are not there no residual is read: it is another invocation's.
fn fresh(at: vec4<u32>, here: vec4<bool>, summed: bool, sent: vec2<u32>) -> vec4<u32> {
    var old = vec4<u32>(0u);
    if has(FLAG_FEEDBACK) {
        if here.x {
            old.x = residual[at.x];
        }
        if here.y {
            old.y = residual[at.y];
        }
        if here.z {
            old.z = residual[at.z];
        }
        if here.w {
            old.w = residual[at.w];
        }
        if summed {
            return old;
        }
        let k = keys(old);
        let element = at + vec4<u32>(params.first);
        let was_sent = (k > vec4<u32>(sent.x)) | ((k == vec4<u32>(sent.x)) & (element <= vec4<u32>(sent.y)));
        old = select(old, vec4<u32>(0u), was_sent);
    }
    // Any element that is bound, for one that is not there.
    let v = input_of(min(at, vec4<u32>(params.bound - 1u)));
    if !has(FLAG_FEEDBACK) {
        return v;
    }
    return f_add(v, old);
}

// An element after the filter: with feedback, the residual holds the sum.
fn settled(at: u32) -> u32 {
    if has(FLAG_FEEDBACK) {
        return residual[at];
    }
    return input_of(vec4<u32>(at)).x;
}

// The elements of a tile: the one of place 0, the first that is there, and the first that is not any more. Tiles begin at
// multiples of 32 elements.
fn extent_of(start: u32, elements: u32, tile_of_segment: u32) -> vec3<u32> {
    let base = (start & ~31u) + tile_of_segment * TILE;
    return vec3<u32>(base, max(base, start), min(start + elements, base + TILE));
}

// Whether four elements of a tile are there.
fn in_extent(e: vec4<u32>, extent: vec3<u32>) -> vec4<bool> {
    return (e >= vec4<u32>(extent.y)) & (e < vec4<u32>(extent.z));
}
