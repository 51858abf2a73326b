// What both encode kernels do, whatever the quantizer: it brings `measure`, `settle`, `settle_whole`, `fields`,
// `poisoned`, `code` and `value`.

// What a lane's codes leave for pieces of 2 bits (the low half-word) and of 1 bit (the byte above), for 32 units: lanes
// own parts of words there, so words are put together when all lanes are done.
var<workgroup> parts_of_words: array<u32, 1024>;

// Writes rows `2 half` and `2 half + 1` of 16-bit codes.
fn put16(at: u32, half: u32, c: vec4<u32>) {
    codes[first_code() + at + half * 64u] = c.x | (c.y << 16u);
    codes[first_code() + at + half * 64u + 32u] = c.z | (c.w << 16u);
}

// Four pieces of `width` bits, lowest slot in the lowest bits; `done` bits of the codes stand in earlier pieces.
fn join(c: vec4<u32>, done: u32, width: u32) -> u32 {
    let cut = (c >> vec4<u32>(done)) & vec4<u32>((1u << width) - 1u);
    let apart = cut << (vec4<u32>(0u, 1u, 2u, 3u) * width);
    return (apart.x | apart.y) | (apart.z | apart.w);
}

// Encodes a unit; `unit` counts from the span's start, `first` is the unit's first element.
fn encode_unit(unit: u32, first: u32, lane: u32, shift: u32) {
    let bits = params.bits;
    let call = (first_unit() + first / UNIT) * 32u + lane;
    var narrow = vec4<u32>(0u);
    if is_narrow() {
        narrow = draw(call);
    }
    let at = (first / UNIT) * 8u * bits + lane;
    var fours = 0u;
    var small = 0u;
    for (var half = 0u; half < 2u; half++) {
        let e = elements(first + half * 128u + lane);
        let here = exist(e);
        let v = load_own(e, here);
        let f = fields(unit * 8u + half * 4u, shift);
        let c = select(vec4<u32>(0u), code(f, v, dithers(call, half, narrow)), here);
        if bits == 16u {
            put16(at, half, c);
        } else if bits == 8u {
            codes[first_code() + at + half * 32u] = join(c, 0u, 8u);
        } else {
            if (bits & 4u) != 0u {
                fours = fours | (join(c, 0u, 4u) << (half * 16u));
            }
            if (bits & 2u) != 0u {
                small = small | (join(c, bits & 4u, 2u) << (half * 8u));
            }
            if (bits & 1u) != 0u {
                small = small | (join(c, bits & 6u, 1u) << (16u + half * 4u));
            }
        }
        if has(FLAG_FEEDBACK) {
            let rest = f_sub(v, value(f, c));
            // A poisoned bucket's residual stays as it was: its step will be skipped.
            let write = here & !poisoned(f);
            let o = e + vec4<u32>(first_element());
            if write.x {
                residual[o.x] = rest.x;
            }
            if write.y {
                residual[o.y] = rest.y;
            }
            if write.z {
                residual[o.z] = rest.z;
            }
            if write.w {
                residual[o.w] = rest.w;
            }
        }
    }
    if bits < 8u {
        if (bits & 4u) != 0u {
            codes[first_code() + at] = fours;
        }
        parts_of_words[unit * 32u + lane] = small;
    }
}

// Writes the pieces of 2 bits and of 1 bit of the span's units.
fn put_small_pieces(span: u32, thread: u32) {
    let bits = params.bits;
    if (bits & 2u) != 0u {
        for (var k = 0u; k < 2u; k++) {
            let unit = (thread >> 4u) + k * 16u;
            let word = thread & 15u;
            let first = span + unit * UNIT;
            let lane = unit * 32u + word * 2u;
            if first < extent() {
                let at = (first / UNIT) * 8u * bits + (bits & 4u) * 8u + word;
                codes[first_code() + at] = (parts_of_words[lane] & 0xffffu) | (parts_of_words[lane + 1u] << 16u);
            }
        }
    }
    if (bits & 1u) != 0u {
        let unit = thread >> 3u;
        let word = thread & 7u;
        let first = span + unit * UNIT;
        let lane = unit * 32u + word * 4u;
        if first < extent() {
            let at = (first / UNIT) * 8u * bits + (bits & 6u) * 8u + word;
            let low = ((parts_of_words[lane] >> 16u) & 0xffu) | ((parts_of_words[lane + 1u] >> 8u) & 0xff00u);
            let high = (parts_of_words[lane + 2u] & 0xff0000u) | ((parts_of_words[lane + 3u] << 8u) & 0xff000000u);
            codes[first_code() + at] = low | high;
        }
    }
}

fn encode(group: u32, thread: u32) {
    if has(FLAG_GUARDED) {
        if status[0] != 0u {
            return;
        }
    }
    let span = group * SPAN;
    var shift = ONE_BUCKET;
    if params.bucket_log2 == WHOLE {
        if thread == 0u {
            settle_whole();
        }
    } else {
        shift = params.bucket_log2 - 5u;
        measure(span, thread, shift);
        if thread < (256u >> shift) {
            let first = span + (thread << params.bucket_log2);
            settle(thread, first >> params.bucket_log2, first < extent());
        }
    }
    // The residuals that were measured are now overwritten, each by one invocation.
    storageBarrier();
    workgroupBarrier();
    let lane = thread & 31u;
    for (var u = 0u; u < 4u; u++) {
        let unit = (thread >> 5u) * 4u + u;
        let first = span + unit * UNIT;
        if first < extent() {
            encode_unit(unit, first, lane, shift);
        }
    }
    if params.bits < 8u && (params.bits & 3u) != 0u {
        workgroupBarrier();
        put_small_pieces(span, thread);
    }
}
