// Numbers of 64 bits and an exponent, in integers: for the few of PowerSGD's numbers that are products and differences of sums
// over whole columns. They are truncated, not rounded, so each operation is off by 2^-61 of its result at most; there is no
// infinity, and an exponent has all the room it could need.

// (high * 2^32 + low) * 2^exponent, negative or not; `high` has its highest bit set, or the number is zero.
struct Wide {
    negative: bool,
    exponent: i32,
    high: u32,
    low: u32,
}

const NOTHING = Wide(false, 0, 0u, 0u);

// The product of two words: low word, high word.
fn product(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let t = ah * bl + ((al * bl) >> 16u);
    let u = al * bh + (t & 0xffffu);
    return vec2<u32>(a * b, ah * bh + (t >> 16u) + (u >> 16u));
}

// With the highest bit of `high` set.
fn normal(negative: bool, exponent: i32, high: u32, low: u32) -> Wide {
    if high == 0u && low == 0u {
        return NOTHING;
    }
    var h = high;
    var l = low;
    var e = exponent;
    if h == 0u {
        h = l;
        l = 0u;
        e -= 32;
    }
    let up = countLeadingZeros(h);
    if up > 0u {
        h = (h << up) | (l >> (32u - up));
        l = l << up;
    }
    return Wide(negative, e - i32(up), h, l);
}

fn w_mul(a: Wide, b: Wide) -> Wide {
    if a.high == 0u || b.high == 0u {
        return NOTHING;
    }
    let top = product(a.high, b.high);
    let one = product(a.high, b.low);
    let other = product(a.low, b.high);
    let some = top.x + one.y;
    let low = some + other.y;
    let high = top.y + select(0u, 1u, some < one.y) + select(0u, 1u, low < other.y);
    return normal(a.negative != b.negative, a.exponent + b.exponent + 64, high, low);
}

// Whether |a| >= |b|.
fn w_no_less(a: Wide, b: Wide) -> bool {
    if a.high == 0u || b.high == 0u {
        return b.high == 0u;
    }
    if a.exponent != b.exponent {
        return a.exponent > b.exponent;
    }
    return a.high > b.high || (a.high == b.high && a.low >= b.low);
}

// a - b
fn w_sub(a: Wide, b: Wide) -> Wide {
    let swap = !w_no_less(a, b);
    var x = a;
    var y = b;
    y.negative = !y.negative;
    if swap {
        x = y;
        y = a;
    }
    let apart = u32(clamp(x.exponent - y.exponent, 0, 64));
    if y.high == 0u || apart >= 64u {
        return x;
    }
    var high = y.high;
    var low = y.low;
    if apart >= 32u {
        low = high >> (apart - 32u);
        high = 0u;
    } else if apart > 0u {
        low = (low >> apart) | (high << (32u - apart));
        high = high >> apart;
    }
    if x.negative != y.negative {
        return normal(x.negative, x.exponent, x.high - high - select(0u, 1u, x.low < low), x.low - low);
    }
    let l = x.low + low;
    let some = x.high + high;
    let h = some + select(0u, 1u, l < low);
    if some < high || h < some {
        return Wide(x.negative, x.exponent + 1, (h >> 1u) | 0x80000000u, (l >> 1u) | (h << 31u));
    }
    return Wide(x.negative, x.exponent, h, l);
}

// a * 2^by
fn w_scaled(a: Wide, by: i32) -> Wide {
    return Wide(a.negative, a.exponent + by, a.high, a.low);
}

fn w_one() -> Wide {
    return Wide(false, -63, 0x80000000u, 0u);
}

// 1 / sqrt(a), of a positive number.
fn w_inverse_root(a: Wide) -> Wide {
    // a = x * 4^half, with x from 1/4 to 1.
    let odd = (a.exponent & 1) != 0;
    let half = (a.exponent + 64 + select(0, 1, odd)) / 2;
    let x = w_scaled(a, -2 * half);
    // A start that is off by 2^-20 or so; each turn doubles the digits.
    let start = inverseSqrt(f32(a.high >> 8u) * select(1.0, 0.5, odd) * (1.0 / 16777216.0));
    // From 1 to 2, in units of 2^-20: an integer of 22 bits.
    var root = normal(false, -20, 0u, u32(start * 1048576.0));
    for (var turn = 0u; turn < 3u; turn++) {
        let rest = w_sub(w_one(), w_mul(x, w_mul(root, root)));
        var less = w_scaled(w_mul(root, rest), -1);
        less.negative = !less.negative;
        root = w_sub(root, less);
    }
    return w_scaled(root, -half);
}

// The nearest f32, or one beside it; of numbers that are far from the ends of its range.
fn w_to_f32(a: Wide) -> f32 {
    if a.high == 0u {
        return 0.0;
    }
    let exponent = a.exponent + 63 + 127;
    if exponent <= 0 {
        return 0.0;
    }
    // A carry goes into the exponent by itself.
    let bits = (u32(exponent) << 23u) + ((a.high >> 8u) & FRACTION) + ((a.high >> 7u) & 1u);
    return bitcast<f32>(bits | select(0u, SIGN, a.negative));
}
