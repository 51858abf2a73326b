// Plain bytes of codes in base 3, and what they become: `arith::base3` has the formulas.

// The first of each lane's plain bytes.
var<workgroup> firsts: array<u32, 256>;

// The digits of sixteen codes of 2 bits, each in the place of its code.
fn digits(codes: u32) -> u32 {
    return (codes & 0x55555555u) + (codes & (codes >> 1u) & 0x55555555u);
}

// A lane's plain bytes of a unit.
fn plain(unit: u32, lane: u32) -> vec2<u32> {
    let shifts = vec2<u32>((lane & 1u) * 4u, (lane & 1u) * 4u + 2u);
    var bytes = vec2<u32>(0u);
    var power = 1u;
    for (var part = 0u; part < 5u; part++) {
        let word = (unit * 16u + (lane >> 1u)) * 5u + part;
        if word < params.fixed * 16u {
            let own = digits(codes[word]);
            bytes += power * ((vec2<u32>(own) >> shifts) & vec2<u32>(0x03030303u));
        }
        power = power * 3u;
    }
    return bytes;
}

// One of a lane's bytes.
fn byte(bytes: vec2<u32>, at: u32) -> u32 {
    return (select(bytes.x, bytes.y, at > 3u) >> ((at & 3u) * 8u)) & 255u;
}

// Where the run of zeros begins that may reach into a lane's bytes. All invocations arrive together.
fn begin_of(bytes: vec2<u32>, thread: u32) -> u32 {
    let lane = thread & 31u;
    var end = 0u;
    for (var at = 0u; at < 8u; at++) {
        if byte(bytes, at) != 0u {
            end = lane * 8u + at + 1u;
        }
    }
    firsts[thread] = bytes.x & 255u;
    partial[thread] = end;
    workgroupBarrier();
    for (var by = 1u; by < 32u; by = by << 1u) {
        var other = 0u;
        if lane >= by {
            other = partial[thread - by];
        }
        workgroupBarrier();
        end = max(end, other);
        partial[thread] = end;
        workgroupBarrier();
    }
    var begin = 0u;
    if lane > 0u {
        begin = partial[thread - 1u];
    }
    // `partial` was read.
    workgroupBarrier();
    return begin;
}

// A lane's encoded bytes, and where the bytes that end there are: a bit each. `firsts` is of the same unit.
struct Encoded {
    bytes: array<u32, 8>,
    ends: u32,
}

fn encode(bytes: vec2<u32>, run_begin: u32, thread: u32) -> Encoded {
    let lane = thread & 31u;
    var begin = run_begin;
    var all: Encoded;
    for (var at = 0u; at < 8u; at++) {
        let own = byte(bytes, at);
        let place = lane * 8u + at;
        var next = 1u;
        if at < 7u {
            next = byte(bytes, at + 1u);
        } else if lane < 31u {
            next = firsts[thread + 1u];
        }
        if own != 0u {
            all.bytes[at] = own;
            all.ends = all.ends | (1u << at);
            begin = place + 1u;
        } else {
            let zeros = (place - begin) % 14u + 1u;
            if zeros > 1u {
                all.bytes[at] = zeros + 241u;
            }
            if next != 0u || zeros == 14u {
                all.ends = all.ends | (1u << at);
            }
        }
    }
    return all;
}
