// Reading a unit of Elias codes, gamma or delta.

@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
@group(0) @binding(3) var<storage, read> workspace: array<u32>;

// A unit of each team: 256 words.
var<workgroup> unit_words: array<u32, 2048>;
// Where the workgroup's units begin.
var<workgroup> begins: array<u32, 256>;
// What the lanes' codes leave for pieces of 2 bits (the low half-word) and of 1 bit (the byte above): lanes own parts of words.
var<workgroup> small: array<u32, 256>;

const ALL_ONES: u32 = 0xffffffffu;

// A word of a team's unit, and all ones behind its words.
fn word(team: u32, index: u32, words: u32) -> u32 {
    if index < words {
        return unit_words[team * 256u + index];
    }
    return ALL_ONES;
}

// 32 bits from bit `at` on.
fn window(team: u32, at: u32, words: u32) -> u32 {
    let low = word(team, at >> 5u, words) >> (at & 31u);
    if (at & 31u) == 0u {
        return low;
    }
    return low | (word(team, (at >> 5u) + 1u, words) << (32u - (at & 31u)));
}

// The place of the one that has `rank` ones below it.
fn place_of(bits: u32, rank: u32) -> u32 {
    var at = 0u;
    var left = rank;
    for (var width = 16u; width > 0u; width = width >> 1u) {
        let ones = countOneBits((bits >> at) & ((1u << width) - 1u));
        if left >= ones {
            left -= ones;
            at += width;
        }
    }
    return at;
}

// The code of this exponent whose bits behind the unary parts begin at bit `at`.
fn code(team: u32, at: u32, e: u32, words: u32) -> u32 {
    if e == 0u {
        return 0u;
    }
    let most = (1u << (params.bits - 1u)) - 1u;
    var level = most;
    if e <= 15u {
        let power = 1u << e;
        level = min(power + (window(team, at, words) & (power - 1u)) - 1u, most);
    }
    return level | ((window(team, at + e, words) & 1u) << (params.bits - 1u));
}

// The pieces of `width` bits of slots `first` up to `first + count`, lowest slot in the lowest bits.
fn joined(c: ptr<function, array<u32, 8>>, first: u32, count: u32, done: u32, width: u32) -> u32 {
    var joined = 0u;
    for (var k = 0u; k < count; k++) {
        joined = joined | ((((*c)[first + k] >> done) & ((1u << width) - 1u)) << (k * width));
    }
    return joined;
}

// Takes a unit's words.
fn take(team: u32, lane: u32, begin: u32, words: u32) {
    for (var w = lane; w < words; w += 32u) {
        unit_words[team * 256u + w] = values[begin + w];
    }
}

// How many zeros the unary parts of this lane's codes have; the bit behind the last one of them. All invocations arrive together, with
// the unit's words taken before a barrier; what `partial` holds then is still being read.
fn find(team: u32, lane: u32, thread: u32, words: u32, found: ptr<function, array<u32, 8>>) -> u32 {
    // Words of a lane, 1 to 8.
    let each = max((words + 31u) / 32u, 1u);
    var ones = 0u;
    for (var w = 0u; w < each; w++) {
        ones += countOneBits(word(team, lane * each + w, words));
    }
    _ = before(ones, thread, 32u);
    // `partial` has the ones up to each lane's last word. The bit behind the one before this lane's codes is looked for.
    var at = 0u;
    if lane > 0u {
        let rank = lane * 8u - 1u;
        // How many lanes' words end before it.
        var before_it = 0u;
        for (var by = 16u; by > 0u; by = by >> 1u) {
            if partial[team * 32u + before_it + by - 1u] <= rank {
                before_it += by;
            }
        }
        var left = rank;
        if before_it > 0u {
            left -= partial[team * 32u + before_it - 1u];
        }
        var index = before_it * each;
        var w = word(team, index, words);
        while countOneBits(w) <= left {
            left -= countOneBits(w);
            index += 1u;
            w = word(team, index, words);
        }
        at = index * 32u + place_of(w, left) + 1u;
    }
    var index = at >> 5u;
    var w = word(team, index, words) & (ALL_ONES << (at & 31u));
    for (var slot = 0u; slot < 8u; slot++) {
        while w == 0u {
            index += 1u;
            w = word(team, index, words);
        }
        let one = index * 32u + firstTrailingBit(w);
        w = w & (w - 1u);
        (*found)[slot] = one - at;
        at = one + 1u;
    }
    return at;
}

// Writes this lane's codes of a unit that is here. All invocations arrive together, where nothing of `small` is read any more.
fn store(team: u32, lane: u32, thread: u32, unit: u32, c: ptr<function, array<u32, 8>>) {
    let bits = params.bits;
    let here = unit < params.units;
    let to = unit * 8u * bits;
    if here {
        if bits == 16u {
            for (var r = 0u; r < 4u; r++) {
                codes[to + r * 32u + lane] = joined(c, 2u * r, 2u, 0u, 16u);
            }
        } else if bits == 8u {
            codes[to + lane] = joined(c, 0u, 4u, 0u, 8u);
            codes[to + 32u + lane] = joined(c, 4u, 4u, 0u, 8u);
        } else if (bits & 4u) != 0u {
            codes[to + lane] = joined(c, 0u, 8u, 0u, 4u);
        }
    }
    if bits < 8u {
        small[thread] = joined(c, 0u, 8u, bits & 4u, 2u) | (joined(c, 0u, 8u, bits & 6u, 1u) << 16u);
    }
    workgroupBarrier();
    if here && (bits & 2u) != 0u && bits < 8u && lane < 16u {
        let at = team * 32u + lane * 2u;
        codes[to + (bits & 4u) * 8u + lane] = (small[at] & 0xffffu) | (small[at + 1u] << 16u);
    }
    if here && (bits & 1u) != 0u && lane < 8u {
        let at = team * 32u + lane * 4u;
        let low = ((small[at] >> 16u) & 0xffu) | ((small[at + 1u] >> 8u) & 0xff00u);
        let high = (small[at + 2u] & 0xff0000u) | ((small[at + 3u] << 8u) & 0xff000000u);
        codes[to + (bits & 6u) * 8u + lane] = low | high;
    }
}
