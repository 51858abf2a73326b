@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> scalars: array<u32>;
@group(0) @binding(4) var<storage, read_write> codes: array<u32>;
@group(0) @binding(5) var<storage, read> workspace: array<u32>;
@group(0) @binding(6) var<storage, read> status: array<u32>;

// A span's buckets have up to 256 rows of 32 elements, each one a bucket or a part of one.
const BUCKETS: u32 = 256u;
const SUM_WORDS: u32 = 2u;
// When a span is measured, `scratch` is free for another use. What a lane's codes leave for pieces of 2 bits (the low
// half-word) and of 1 bit (the byte above) is there then, for 32 units: lanes own parts of words, so words are put
// together when all lanes are done.
const SCRATCH: u32 = max(WORDS * BUCKETS, 1024u);

var<workgroup> encoders: array<vec4<u32>, BUCKETS>;
// With FEEDBACK the decoders too.
const DECODERS: u32 = BUCKETS;

// Makes the bucket that has this statistic, and gives its scalars on the wire.
fn make(bucket: u32, found: vec2<u32>) -> vec2<u32> {
    let sent = wire(found, factor());
    encoders[bucket] = encoder(found);
    if has(FLAG_FEEDBACK) {
        decoders[bucket] = decoder(sent);
    }
    return sent;
}

// Makes a bucket that was measured, and writes its scalars where `exists`.
fn settle(bucket: u32, index: u32, exists: bool) {
    let sent = make(bucket, statistic_of(bucket, factor()));
    if exists {
        let to = first_scalar() + index * SCALARS;
        scalars[to] = sent.x;
        if SCALARS > 1u {
            scalars[to + 1u] = sent.y;
        }
    }
}

// The encoders of four rows, of which the first is a multiple of 4.
fn encoders_of(row: u32, shift: u32) -> Columns {
    let a = encoders[row >> shift];
    if shift >= 2u {
        return repeated(a);
    }
    return columns(a, encoders[(row + 1u) >> shift], encoders[(row + 2u) >> shift], encoders[(row + 3u) >> shift]);
}

// Writes rows `2 half` and `2 half + 1` of 16-bit codes.
fn put16(at: u32, half: u32, c: vec4<u32>) {
    codes[first_code() + at + half * 64u] = c.x | (c.y << 16u);
    codes[first_code() + at + half * 64u + 32u] = c.z | (c.w << 16u);
}

// Four pieces of `width` bits, lowest slot in the lowest bits; `done` bits of the codes stand in earlier pieces.
fn packed(c: vec4<u32>, done: u32, width: u32) -> u32 {
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
        let row = unit * 8u + half * 4u;
        let c = select(vec4<u32>(0u), code(encoders_of(row, shift), v, dithers(call, half, narrow)), here);
        if bits == 16u {
            put16(at, half, c);
        } else if bits == 8u {
            codes[first_code() + at + half * 32u] = packed(c, 0u, 8u);
        } else {
            if (bits & 4u) != 0u {
                fours = fours | (packed(c, 0u, 4u) << (half * 16u));
            }
            if (bits & 2u) != 0u {
                small = small | (packed(c, bits & 4u, 2u) << (half * 8u));
            }
            if (bits & 1u) != 0u {
                small = small | (packed(c, bits & 6u, 1u) << (16u + half * 4u));
            }
        }
        if has(FLAG_FEEDBACK) {
            let d = decoders_of(row, shift);
            let rest = f_sub(v, value(d, c));
            // A poisoned bucket's residual stays as it was: its step will be skipped.
            let write = here & !poisoned(d);
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
        if (bits & 3u) != 0u {
            atomicStore(&scratch[unit * 32u + lane], small);
        }
    }
}

// What lane `lane` of the span's units left.
fn small_piece(lane: u32) -> u32 {
    return atomicLoad(&scratch[lane]);
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
                codes[first_code() + at] = (small_piece(lane) & 0xffffu) | (small_piece(lane + 1u) << 16u);
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
            let low = ((small_piece(lane) >> 16u) & 0xffu) | ((small_piece(lane + 1u) >> 8u) & 0xff00u);
            let high = (small_piece(lane + 2u) & 0xff0000u) | ((small_piece(lane + 3u) << 8u) & 0xff000000u);
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
            _ = make(0u, whole_statistic());
        }
    } else {
        shift = params.bucket_log2 - 5u;
        look(span, thread, shift);
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
