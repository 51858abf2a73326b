#!/usr/bin/env python3
"""Encodes the gradients of golden vectors, and writes the payloads.

This is an independent encoder and selector, written from docs/wire.md alone. A binary32 number is held as a Python float,
which is a binary64: sum, difference, product and quotient of two binary32 numbers come out right when they are rounded
twice, first to 53 bits and then to 24, so each operation is Python's and a rounding by `struct`.

Usage: encode_payload.py VECTORS OUT [VECTORS OUT ...]

VECTORS is qsgd.json, uniform.json, onebit.json, sign.json, drive.json, eden.json, ternary.json, float.json, tree.json, natural.json, quantile.json, elias.json, topk.json or philox.json, or other vectors with such fields. OUT
becomes a list of what the page makes of each vector's input, as JSON with the vector's own names: payload, residual_after,
indices; of elias.json packed; of philox.json's columns the entry, and then of its draws the dither.
"""

import itertools
import json
import math
import struct
import sys
import zlib
from fractions import Fraction

from decode_payload import CENTROIDS, CODECS, FORMATS, piece_widths, unit_codes

NAN = 0x7FC00000
INFINITY = 0x7F800000
MAGNITUDE = 0x7FFFFFFF
# The largest finite number.
LARGEST = float(2**128 - 2**104)
UNIT = 256
SPAN = 8192
TAGS = {"f32": 0, "f16": 1, "bf16": 2, "payload": 3}


# Numbers of binary32


def rounded(value):
    """Rounds to binary32."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def from_bits(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def to_bits(value):
    """The bits of a number; a NaN is the one that is written."""
    return NAN if value != value else struct.unpack("<I", struct.pack("<f", value))[0]


def is_finite(bits):
    return bits & MAGNITUDE < INFINITY


def add(x, y):
    """The bits of the rounded sum of two numbers given by their bits."""
    return to_bits(rounded(from_bits(x) + from_bits(y)))


def widened(half, dtype):
    """The bits of a half as binary32."""
    if dtype == "bf16":
        return half << 16
    sign, exponent, fraction = half >> 15 << 31, half >> 10 & 31, half & 1023
    if exponent == 31:
        return sign | INFINITY | fraction << 13
    # Subnormal numbers and normal ones of binary16.
    value = fraction * 2.0**-24 if exponent == 0 else (1024 + fraction) * 2.0 ** (exponent - 25)
    return sign | to_bits(value)


def narrowed(bits, dtype):
    """A binary32 as it is sent in a shorter type."""
    kept, least, infinity = (10, -14, 0x7C00) if dtype == "f16" else (7, -126, 0x7F80)
    sign, magnitude = bits >> 31 << 15, bits & MAGNITUDE
    if magnitude > INFINITY:
        if dtype == "f16":
            return sign | 0x7E00 | bits >> 13 & 0x3FF
        return bits >> 16 | 0x0040
    if magnitude == INFINITY:
        return sign | infinity
    value = Fraction(from_bits(magnitude))
    exponent = max(magnitude >> 23, 1) - 127
    exponent = max(exponent, least)
    # Python rounds a Fraction to an integer with ties to even.
    count = round(value / Fraction(2) ** (exponent - kept))
    return sign | min(((exponent - least) << kept) + count, infinity - 1)


# Draws


def philox(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(7):
        x, y = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = y >> 32 ^ c1 ^ k0, y & 0xFFFFFFFF, x >> 32 ^ c3 ^ k1, x & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


class Seed:
    def __init__(self, words):
        run, step, self.tensor, worker = (
            int(words.get(name, "0"), 16) for name in ("run", "step", "tensor", "worker")
        )
        key = (run + worker * 0xD1342543DE82EF95) % 2**64
        self.key = key % 2**32, key >> 32
        self.step = step % 2**32, step >> 32
        self.blocks = {}

    def block(self, call):
        """The output of a call; neighbours share it."""
        if call not in self.blocks:
            self.blocks[call] = philox((call, self.tensor, *self.step), self.key)
        return self.blocks[call]

    def column(self, column, row):
        """An entry of a seeded column of PowerSGD, whose draw has this seed's step and tensor."""
        key = self.key[0], self.key[1] ^ (column + 1) * 0x9E3779B9 % 2**32
        words = philox((row // 2, self.tensor, *self.step), key)
        two = words[0:2] if row % 2 == 0 else words[2:4]
        return (sum(word % 65536 + word // 65536 for word in two) - 131070) / 65536


def fraction(levels):
    """F: bits of a fixed-point number behind the point."""
    return max(31 - levels.bit_length(), 17)


def dither(seed, element, bucket, f):
    """The dither of an element, in units of 2^-f of a level."""
    unit, lane, slot = element // UNIT, element % 32, element % UNIT // 32
    if bucket is None:
        return seed.block(2 * (32 * unit + lane) + slot // 4)[slot % 4] >> (32 - f)
    word = seed.block(32 * unit + lane)[slot // 2]
    draw = word & 0xFFFF if slot % 2 == 0 else word >> 16
    return draw * 2 ** (f - 16) + 2**f // 2**17


# The bucketed codecs

# Where a centroid ends and the next begins, in units of 2^-18.
MIDPOINTS = {
    1: (),
    2: (257320,),
    3: (131216, 275240, 458209),
    4: (67691, 136945, 209597, 288171, 376737, 483271, 629356),
}


class Codec:
    """A setting, as the fields of a vector have it."""

    def __init__(self, fields):
        self.codec = {"qsgd": 1, "uniform": 2, "onebit": 4, "sign": 6, "ternary": 7, "float": 8, "tree": 10, "eden": 11, "natural": 12, "drive": 13, "quantile": 14}[fields["codec"]]
        self.qsgd = self.codec == 1
        self.bits = fields["bits"]
        self.levels = fields["levels"]
        self.bucket = fields["bucket"]
        self.l2 = fields.get("norm") == "l2"
        self.unit = fields.get("norm") == "unit"
        self.factor = float(fields["norm"].split("=")[1]) if "=" in (fields.get("norm") or "") else None
        self.nearest = fields.get("rounding") == "nearest"
        self.contractive = fields["contractive"]
        self.seed = Seed(fields["seed"])
        self.fraction = fraction(self.levels)
        self.full = self.levels << self.fraction

    def beta(self, n):
        if not self.contractive:
            return 1.0
        size = float(n if self.bucket is None else min(self.bucket, n))
        levels = float(self.levels)
        if self.qsgd:
            omega = min(size / (4.0 * levels * levels), math.sqrt(size) / levels)
        elif self.codec == 7:
            omega = min(size / 4.0, math.sqrt(size) / 2.0)
        elif self.codec == 10:
            omega = 0.9205 + min(size / 4.0 * 1e-12, math.sqrt(size) * 1e-6)
        elif self.codec == 12:
            omega = 0.125 + min(size * 4.0**-self.levels, math.sqrt(size) * 2.0 ** (1 - self.levels))
        else:
            omega = size / (2.0 * levels * levels)
        return rounded(1.0 / (1.0 + omega))

    def dither(self, element):
        return 2 ** (self.fraction - 1) if self.nearest else dither(self.seed, element, self.bucket, self.fraction)

    def level(self, scaled, element):
        t = min(int(scaled), self.full)
        return (t + self.dither(element)) >> self.fraction

    def encode_bucket(self, x, first, beta):
        """Scalars, as bits, and codes."""
        if not all(map(is_finite, x)):
            return [NAN] * (CODECS[self.codec][2] or self.levels), [0] * len(x)
        if self.codec == 4:
            return self.encode_onebit(x)
        if self.codec in (6, 13):
            scale = drive_scale(x) if self.codec == 13 else 1.0 if self.unit else mean(x, [True] * len(x))
            return [to_bits(scale)], [int(from_bits(bits) >= 0) for bits in x]
        if self.codec == 7:
            return self.encode_ternary(x, first, beta)
        if self.codec == 8:
            return self.encode_float(x, first)
        if self.codec == 10:
            return self.encode_tree(x, first, beta)
        if self.codec == 11:
            return self.encode_eden(x)
        if self.codec == 12:
            return self.encode_natural(x, first, beta)
        if self.codec == 14:
            return self.encode_quantiles(x)
        return self.encode_qsgd(x, first, beta) if self.qsgd else self.encode_uniform(x, first, beta)

    def encode_eden(self, x):
        exponent = max([bits >> 23 & 255 for bits in x] + [1])
        cut = [int(math.ldexp(from_bits(bits & MAGNITUDE), 150 - exponent)) for bits in x]
        squares = sum(m * m for m in cut)
        inverse = rounded(rounded(math.isqrt(len(x) << 36)) / rounded(max(math.isqrt(squares), 1)))
        inverse = from_bits(to_bits(inverse) & ~31)
        half = 1 << (self.bits - 1)
        levels = [sum(rounded(m * inverse) >= at for at in MIDPOINTS[self.bits]) for m in cut]
        products = sum(m * CENTROIDS[self.bits][k] for m, k in zip(cut, levels))
        beyond = max(products.bit_length(), 31) - 31
        quotient = (squares << 19 >> beyond) // (products >> beyond) if products else 0
        scale = min(rounded(rounded(float(quotient)) * 2.0 ** (exponent - 156)), LARGEST)
        codes = [half + k if from_bits(bits) >= 0 else half - 1 - k for bits, k in zip(x, levels)]
        return [to_bits(scale)], codes

    def encode_qsgd(self, x, first, beta):
        magnitudes = [from_bits(bits & MAGNITUDE) for bits in x]
        norm = l2_norm(x) if self.l2 else max(magnitudes)
        up = 2.0**64 if norm < 2.0**-60 else 1.0
        inverse = rounded(self.full / rounded(norm * up)) if norm else 0.0
        codes = []
        for i, (bits, magnitude) in enumerate(zip(x, magnitudes)):
            scaled = rounded(rounded(magnitude * up) * inverse)
            codes.append(self.level(scaled, first + i) | bits >> 31 << (self.bits - 1))
        return [to_bits(rounded(norm * beta))], codes

    def encode_ternary(self, x, first, beta):
        scale = max(from_bits(bits & MAGNITUDE) for bits in x)
        if self.factor and self.nearest:
            scale = min(rounded(scale * self.factor), LARGEST)
        elif self.factor:
            scale = min(scale, deviations(x, self.factor))
        up = 2.0**64 if scale < 2.0**-60 else 1.0
        inverse = rounded(self.full / rounded(scale * up)) if scale else 0.0
        codes = []
        for i, bits in enumerate(x):
            magnitude = min(from_bits(bits & MAGNITUDE), scale)
            scaled = rounded(rounded(magnitude * up) * inverse)
            codes.append(self.level(scaled, first + i) | bits >> 31 << 1)
        return [to_bits(rounded(scale * beta))], codes

    def encode_uniform(self, x, first, beta):
        # -0 is below +0.
        order = [(from_bits(bits), bits >> 31 == 0, bits) for bits in x]
        low, high = (from_bits(extreme[2]) for extreme in (min(order), max(order)))
        largest = max(abs(low), abs(high))
        up = 0.5 if largest >= 2.0**126 else 2.0**64 if largest < 2.0**-60 else 1.0
        bottom = rounded(low * up)
        reach = rounded(rounded(high * up) - bottom)
        inverse = rounded(self.full / reach) if reach else 0.0
        if reach and rounded(reach * inverse) < self.full:
            inverse = from_bits(to_bits(inverse) + 1)
        codes = []
        for i, bits in enumerate(x):
            above = rounded(rounded(from_bits(bits) * up) - bottom)
            codes.append(self.level(rounded(above * inverse), first + i))
        return [to_bits(rounded(low * beta)), to_bits(rounded(high * beta))], codes

    def encode_onebit(self, x):
        codes = [int(from_bits(bits) >= 0) for bits in x]
        below, above = (mean(x, [code == side for code in codes]) for side in (0, 1))
        return [to_bits(-below if below else 0.0), to_bits(above)], codes

    def encode_float(self, x, first):
        mantissa, lowest = FORMATS[self.levels]
        dropped = 23 - mantissa
        base = lowest + 127
        if not self.unit:
            largest = max(bits & MAGNITUDE for bits in x)
            top = min((largest + 2**23 - 1 - (self.levels << dropped) % 2**23) >> 23, 254)
            base = max(top - (self.levels >> mantissa) + 1, 1)
        if self.factor:
            # Numbers at least twice the bound apart, or the largest power of two up to that.
            base = max(base, math.floor(math.log2(2 * self.factor)) + mantissa + lowest + 127)
        codes = []
        for i, bits in enumerate(x):
            magnitude = bits & MAGNITUDE
            exponent = max(magnitude >> 23, 1)
            m = magnitude if magnitude < 2**23 else magnitude % 2**23 + 2**23
            if exponent < base:
                place = m >> (base - exponent)
                if m % 2 ** (base - exponent):
                    place |= 1
            else:
                place = m + (exponent - base) * 2**23
            if self.nearest:
                up = 2 ** (dropped - 1) - 1 + (place >> dropped & 1)
            else:
                up = self.dither(first + i) >> (self.fraction - dropped)
            codes.append(min((place + up) >> dropped, self.levels) | bits >> 31 << (self.bits - 1))
        return [to_bits(2.0 ** (base - 127 - lowest))], codes

    def encode_tree(self, x, first, beta):
        scale = max(from_bits(bits & MAGNITUDE) for bits in x)
        up = 2.0**64 if scale < 2.0**-60 else 1.0
        inverse = rounded(2e6 / rounded(scale * up)) if scale else 0.0
        codes = []
        for i, bits in enumerate(x):
            m = rounded(rounded(from_bits(bits & MAGNITUDE) * up) * inverse)
            e = sum(m >= 2 * 10**i for i in range(6))
            step = 9 * 10 ** (e - 1) * 2 // 2**e if e else 2
            offset = rounded(((2**e - 1) * step - 2 * 10 ** (e - 1)) / step) if e else 0.0
            place = rounded(rounded(m * rounded(1 / step)) + offset)
            codes.append(self.level(place * 2**self.fraction, first + i) | bits >> 31 << 7)
        return [to_bits(rounded(scale * beta))], codes

    def encode_natural(self, x, first, beta):
        largest = max(bits & MAGNITUDE for bits in x)
        scale, up, inverse, top = largest, 1.0, 1.0, 150
        if self.bits == 8:
            top = min((largest + 2**23 - 1) >> 23, 254)
            scale = top << 23
        else:
            up = 2.0**64 if from_bits(largest) < 2.0**-60 else 1.0
            inverse = rounded(2.0**23 / rounded(from_bits(largest) * up)) if largest else 0.0
        lowest = top - self.levels + 1
        base = max(lowest, 1)
        codes = []
        for i, bits in enumerate(x):
            magnitude = to_bits(rounded(rounded(from_bits(bits & MAGNITUDE) * up) * inverse))
            exponent = max(magnitude >> 23, 1)
            mantissa = magnitude if magnitude < 2**23 else magnitude % 2**23 + 2**23
            if exponent < base:
                place = mantissa >> (base - exponent)
            else:
                place = mantissa + (exponent - base) * 2**23
            used = (place + (self.dither(first + i) >> (self.fraction - 23))) >> 23
            level = min(used + base - lowest, self.levels) if used else 0
            codes.append(level | bits >> 31 << (self.bits - 1))
        return [to_bits(rounded(from_bits(scale) * beta))], codes

    def encode_quantiles(self, x):
        n, quantiles = len(x), self.levels
        values = [from_bits(bits) for bits in x]
        ordered = sorted(values)
        p = sum(value < 0 for value in values)
        z = sum(value == 0 for value in values)
        above, shared = n - p - z, quantiles - (z > 0)
        if p and above:
            q = min(max((shared * p + (n - z) // 2) // (n - z), 1), shared - 1)
        else:
            q = 0 if above else shared
        rest = shared - q
        ranks = [j * p // q for j in range(q)] + [p] * (z > 0) + [p + z + j * above // rest for j in range(rest)]
        edges = [ordered[rank] for rank in ranks]
        codes = []
        for value in values:
            code = max(j for j, edge in enumerate(edges) if edge <= value)
            codes.append(code - (edges[max(code - 1, 0) : code + 1] == [value, value]))
        means = []
        for j in range(quantiles):
            m = mean(x, [code == j for code in codes])
            means.append(to_bits(-m if j < q and m else m))
        return means, codes

    def encode(self, x, dtype):
        """The payload of a gradient, given as bits of binary32, and the bits of what it decodes to."""
        n = len(x)
        size = self.bucket or max(n, 1)
        beta = self.beta(n)
        scalars, codes, values = [], [], []
        for first in range(0, n, size):
            own, mine = self.encode_bucket(x[first : first + size], first, beta)
            scalars += own
            codes += mine
            decode = CODECS[self.codec][4](own, self.levels, self.bits)
            values += [decode(code) for code in mine]
        body = struct.pack("<%dI" % len(scalars), *scalars) + packed(codes, self.bits)
        log_bucket = 255 if self.bucket is None else self.bucket.bit_length() - 1
        flags = int(self.l2) | int(self.contractive) << 1
        head = struct.pack("<4sBBBBQ", b"GWIR", 1, self.codec, self.bits, log_bucket, n)
        return sealed(head + struct.pack("<HBB8x", self.levels, TAGS[dtype], flags), body), values


def mean(x, taken):
    """The mean magnitude of the elements of x that are taken."""
    spans = []
    for first in range(0, len(x), 8192):
        both = zip(x[first : first + 8192], taken[first : first + 8192])
        magnitudes = [bits & MAGNITUDE for bits, mine in both if mine]
        exponent = max([bits >> 23 for bits in magnitudes] + [1])
        spans.append((exponent, sum(int(from_bits(bits) * 2.0 ** (158 - exponent)) for bits in magnitudes)))
    top = max([exponent for exponent, _ in spans])
    total = sum(part >> (top - exponent) for exponent, part in spans)
    return rounded(rounded(float(total // max(sum(taken), 1))) * 2.0 ** (top - 158))


def drive_scale(x):
    """The sum of squares of the elements of x over the sum of their magnitudes."""
    spans = []
    for first in range(0, len(x), 8192):
        magnitudes = [bits & MAGNITUDE for bits in x[first : first + 8192]]
        exponent = max(max(bits >> 23 for bits in magnitudes), 1)
        cut = [int(math.ldexp(from_bits(bits), 150 - exponent)) for bits in magnitudes]
        spans.append((exponent, sum(cut), sum(m * m for m in cut)))
    top = max(exponent for exponent, _, _ in spans)
    total = sum(part >> (top - exponent) for exponent, part, _ in spans)
    squares = sum(part >> 2 * (top - exponent) for exponent, _, part in spans)
    beyond = max(total.bit_length(), 31) - 31
    quotient = (squares << 8 >> beyond) // (total >> beyond) if total else 0
    return rounded(rounded(float(quotient)) * 2.0 ** (top - 158))


def sealed(head, body):
    return head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body


def root_of_squares(x):
    """The root of the sum of squares of finite numbers, and the exponent of its unit: a bucket of at most 8192 is one span."""
    spans = []
    for first in range(0, len(x), SPAN):
        magnitudes = [bits & MAGNITUDE for bits in x[first : first + SPAN]]
        top = max(max(magnitudes) >> 23, 1)
        integers = (Fraction(from_bits(bits)) / Fraction(2) ** (top - 150) for bits in magnitudes)
        spans.append((top, sum(math.floor(m) ** 2 for m in integers)))
    top = max(top for top, _ in spans)
    total = sum(s // 4 ** min(top - own, 31) for own, s in spans)
    doublings = 0
    while total >= 2**62:
        total //= 4
        doublings += 1
    return rounded(math.isqrt(total)), top - 150 + doublings


def l2_norm(x):
    root, exponent = root_of_squares(x)
    return min(rounded(root * 2.0**exponent), LARGEST)


def deviations(x, factor):
    """So many standard deviations about zero."""
    root, exponent = root_of_squares(x)
    ratio = rounded(rounded(root / rounded(math.isqrt(len(x) << 30))) * factor)
    return min(rounded(ratio * 2.0 ** (exponent + 15)), LARGEST)


def packed(codes, bits):
    """The codes as bytes, unit after unit."""
    out = bytearray()
    for first in range(0, len(codes), UNIT):
        unit = codes[first : first + UNIT]
        unit += [0] * (UNIT - len(unit))
        done = 0
        for width in piece_widths(bits):
            slots = min(8, 32 // width)
            for group in range(8 // slots):
                for lane in range(32):
                    integer = 0
                    for s in range(slots):
                        code = unit[(group * slots + s) * 32 + lane]
                        integer |= (code >> done & (1 << width) - 1) << s * width
                    out += integer.to_bytes(slots * width // 8, "little")
            done += width
    return bytes(out)


def elias_words(codes, bits, delta):
    """A unit's codes, as words of Elias gamma or delta codes."""
    unary, middles, rests = [], [], []
    # Lane after lane, and in a lane slot after slot.
    for code in (codes[slot * 32 + lane] for lane in range(32) for slot in range(8)):
        level, sign = code & 2 ** (bits - 1) - 1, code >> bits - 1
        digits = [level + 1 >> i & 1 for i in range((level + 1).bit_length() - 1)]
        length = len(digits) + 1
        middle = [length >> i & 1 for i in range(length.bit_length() - 1)] if delta else []
        unary += [0] * len(middle if delta else digits) + [1]
        middles += middle
        rests += digits + [sign] if level else []
    stream = unary + middles + rests
    return words((sum(bit << at for at, bit in enumerate(stream)), len(stream)))


def places_words(units, bits):
    """Up to 64 units of codes, as their entry of the table and words of places and levels."""
    found = []
    for unit, codes in enumerate(units):
        for rest in range(UNIT):
            code = codes[rest % 8 * 32 + rest // 8]
            if code & 2 ** (bits - 1) - 1:
                found.append((UNIT * unit + rest, code & 2 ** (bits - 1) - 1, code >> bits - 1))
    if not found:
        return 0, b""
    count, level_bits = len(found), max(level - 1 for _, level, _ in found).bit_length()
    low = (16384 // count).bit_length() - 1
    marks, stream = count + (16384 >> low), 0
    for k, (place, level, sign) in enumerate(found):
        stream |= 1 << (place >> low) + k
        record = place % 2**low | level - 1 << low | sign << low + level_bits
        stream |= record << marks + k * (low + level_bits + 1)
    return count + 2**16 * level_bits, words((stream, marks + count * (low + level_bits + 1)))


def base3_words(parts):
    """Up to five units of codes of 2 bits, as words in base 3."""
    plain = [0] * 256
    for part, codes in enumerate(parts):
        for element, code in enumerate(codes):
            lane, slot = element % 32, element // 32
            five, power = divmod(16 * part + lane // 2, 5)
            place = 8 * (lane % 2) + slot
            plain[16 * five + 4 * (place % 4) + place // 4] += 3**power * (0, 1, 0, 2)[code]
    out, zeros = bytearray(), 0
    for byte in plain + [None]:
        if zeros and (byte != 0 or zeros == 14):
            out.append(241 + zeros if zeros > 1 else 0)
            zeros = 0
        if byte == 0:
            zeros += 1
        elif byte is not None:
            out.append(byte)
    return bytes(out) + bytes(-len(out) % 4)


def encode_packed(vector):
    """The payload with its codes packed as the vector's is, of one with codes of fixed width."""
    payload = bytes.fromhex(vector["fixed"])
    entropy = bytes.fromhex(vector["packed"])[20]
    bits, log_bucket, n = struct.unpack("<BBQ", payload[6:16])
    buckets = min(n, 1) if log_bucket == 255 else -(-n // 2**log_bucket)
    codes_at = 32 + 4 * buckets
    units = [payload[at : at + 32 * bits] for at in range(codes_at, len(payload), 32 * bits)]
    codes = [unit_codes(unit, bits) for unit in units]
    if entropy == 4:
        both = [places_words(codes[first : first + 64], bits) for first in range(0, len(codes), 64)]
        parts = [part for _, part in both]
        table = b"".join(struct.pack("<I", entry) for entry, _ in both)
    elif entropy == 2:
        parts = [base3_words(codes[first : first + 5]) for first in range(0, len(codes), 5)]
    else:
        parts = [elias_words(unit, bits, entropy == 3) for unit in codes]
    if entropy != 4:
        table = bytes(len(part) // 4 - 1 for part in parts)
        table += bytes(-len(table) % 4)
    body = b"".join([payload[32:codes_at], table, *parts])
    head = payload[:20] + struct.pack("<B3xI", entropy, sum(map(len, parts)) // 4)
    return {"packed": sealed(head, body).hex()}


# Sparse payloads


def key(bits):
    return min(bits & MAGNITUDE, INFINITY + 1)


def largest(x, k):
    """The indices of the k entries of largest key, ties by the lower index."""
    return sorted(sorted(range(len(x)), key=lambda i: (-key(x[i]), i))[:k])


def of_each(x, segments):
    indices, start = [], 0
    for elements, k in segments:
        indices += [start + i for i in largest(x[start : start + elements], k)]
        start += elements
    return indices


def selected(vector, x, size):
    """What a vector asks for. `size`: bytes of a value, 0 where values are quantized."""
    n = len(x)
    keep = vector.get("keep")
    if keep is None:
        return largest(x, vector["k"])
    if "part" in keep:
        part = struct.unpack(">d", bytes.fromhex(keep["part"]))[0]
        # Of a merge, the part is of the gradient's elements, not of the entries.
        exact = part * vector["n"]
        k = math.floor(exact) if exact - math.floor(exact) <= 2.0**-51 * exact else math.ceil(exact)
        return largest(x, min(k, n))
    if "threshold" in keep:
        least = key(int(keep["threshold"], 16))
        indices = [i for i in range(n) if key(x[i]) >= least]
        more = len(index_part(n, indices)[1]) + size * len(indices) > size * n
        return list(range(n)) if size and more else indices
    if "blocks" in keep:
        elements, k = keep["blocks"]
        return of_each(x, [(min(elements, n - start), k) for start in range(0, n, elements)])
    return of_each(x, keep["segments"])


def words(bits):
    """A set of bits, as an integer, in whole words that `length` of them take."""
    value, length = bits
    return value.to_bytes(-(-length // 32) * 4, "little")


def index_part(n, indices):
    """Format and bytes of the indices."""
    c = len(indices)
    if c == n:
        return 0, b""
    plain = struct.pack("<%dI" % c, *indices)
    low, high, width = 0, 0, (n // c).bit_length() - 1 if c else 0
    for k, i in enumerate(indices):
        low |= (i & (1 << width) - 1) << k * width
        high |= 1 << k + (i >> width)
    coded = words((low, c * width)) + words((high, c + (n - 1 >> width))) if c else b""
    bitmap = words((sum(1 << i for i in indices), n))
    # Of several that are as short, the first.
    return min(((1, plain), (2, coded), (3, bitmap)), key=lambda part: len(part[1]))


def encode_sparse(vector):
    n, dtype, sent_as = vector["n"], vector["dtype"], vector["values"]
    raw = numbers(vector["gradient"])
    x = raw if dtype == "f32" else [widened(half, dtype) for half in raw]
    before = vector.get("residual_before")
    if before is not None:
        x = [add(g, e) for g, e in zip(x, numbers(before))]
    indices = selected(vector, x, {"f32": 4, "payload": 0}.get(sent_as, 2))
    kept = [x[i] for i in indices]
    own = [raw[i] for i in indices] if sent_as == dtype and before is None else None
    values, decoded = sent_values(vector, kept, own)
    result = {"indices": listed(indices), "payload": sparse_payload(n, dtype, sent_as, indices, values).hex()}
    if before is not None:
        after = list(x)
        for i, value, sent in zip(indices, kept, decoded):
            after[i] = rest(value, sent)
        result["residual_after"] = listed(after if all(map(is_finite, x)) else numbers(before))
    return result


def sent_values(vector, kept, own=None):
    """The bytes of values, given as bits of binary32 or as they are, and the bits of what they decode to."""
    sent_as = vector["values"]
    if sent_as == "payload":
        values, decoded = Codec(vector["quantizer"]).encode(kept, "f32")
    elif sent_as == "f32":
        values, decoded = struct.pack("<%dI" % len(kept), *kept), kept
    else:
        halves = own if own is not None else [narrowed(bits, sent_as) for bits in kept]
        values = struct.pack("<%dH" % len(halves), *halves)
        decoded = [widened(half, sent_as) for half in halves]
    # A NaN is written as the one.
    return values, [bits if key(bits) <= INFINITY else NAN for bits in decoded]


def sparse_payload(n, dtype, sent_as, indices, values):
    form, coded = index_part(n, indices)
    head = struct.pack("<4sBBBBQ2xBxI4x", b"GWIR", 1, 3, TAGS[sent_as], form, n, TAGS[dtype], len(indices))
    return sealed(head, coded + values)


def rest(value, sent):
    """What feedback leaves of a value of which this was sent."""
    if value == sent:
        return 0
    if is_finite(sent):
        return to_bits(rounded(from_bits(value) - from_bits(sent)))
    return value


def merge(vector):
    """The merge of two payloads, of each of which there are indices and decoded values."""
    n, keep = vector["n"], vector.get("keep", {})
    a, b = ({i: bits for i, bits in zip(*map(numbers, entries))} for entries in vector["merge"])
    union = sorted({*a, *b})
    x = [add(a.get(i, 0), b.get(i, 0)) for i in union]
    if "blocks" in keep:
        elements, k = keep["blocks"]
        segments = [(min(elements, n - start), k) for start in range(0, n, elements)]
    else:
        segments = keep.get("segments", [])
    if segments:
        ends = itertools.accumulate(elements for elements, _ in segments)
        behind = [0, *(sum(i < end for i in union) for end in ends)]
        places = of_each(x, [(after - before, k) for before, after, (_, k) in zip(behind, behind[1:], segments)])
    else:
        # Nothing is compared: no threshold takes all.
        places = selected(vector, x, 0)
    kept = [x[place] for place in places]
    indices = [union[place] for place in places]
    values, decoded = sent_values(vector, kept)
    left = dict(zip(union, x))
    for i, value, sent in zip(indices, kept, decoded):
        left[i] = rest(value, sent)
    after = numbers(vector["residual_before"])
    for i, bits in left.items():
        after[i] = add(after[i], bits) if bits else after[i]
    if not all(map(is_finite, x + after)):
        after = numbers(vector["residual_before"])
    payload = sparse_payload(n, "f32", vector["values"], indices, values)
    return {"indices": listed(indices), "payload": payload.hex(), "residual_after": listed(after)}


# Vectors


def numbers(text):
    """The words of a list, `word*count` being that word count times."""
    values = []
    for part in text.split():
        word, _, count = part.partition("*")
        values += [int(word, 16)] * int(count or 1)
    return values


def listed(values):
    """The words of numbers, four and more equal ones written once."""
    parts = []
    for word, same in itertools.groupby("%08x" % value for value in values):
        count = len(list(same))
        parts += ["%s*%d" % (word, count)] if count >= 4 else [word] * count
    return " ".join(parts)


def encode_dense(vector):
    codec, dtype = Codec(vector), vector["dtype"]
    x = numbers(vector["gradient"])
    if dtype != "f32":
        x = [widened(half, dtype) for half in x]
    before = vector.get("residual_before")
    if before is None:
        return {"payload": codec.encode(x, dtype)[0].hex()}
    before = numbers(before)
    x = [add(g, e) for g, e in zip(x, before)]
    payload, values = codec.encode(x, dtype)
    size = codec.bucket or max(len(x), 1)
    after = []
    for first in range(0, len(x), size):
        bucket = slice(first, first + size)
        if all(map(is_finite, x[bucket])):
            after += [to_bits(rounded(from_bits(s) - from_bits(v))) for s, v in zip(x[bucket], values[bucket])]
        else:
            after += before[bucket]
    return {"payload": payload.hex(), "residual_after": listed(after)}


def encode_file(file):
    if "columns" in file:
        entry = lambda column: to_bits(Seed(column).column(column["column"], column["row"]))
        of = lambda draw: dither(Seed(draw), draw["element"], draw["bucket"], fraction(draw["levels"]))
        results = [{"entry": "%08x" % entry(column)} for column in file["columns"]]
        return results + [{"dither": "%08x" % of(draw)} for draw in file["draws"]]
    kinds = {"codec": encode_dense, "fixed": encode_packed, "merge": merge}
    encode = lambda vector: next((kinds[field] for field in kinds if field in vector), encode_sparse)(vector)
    return [{"name": vector["name"], **encode(vector)} for vector in file["vectors"]]


def main(arguments):
    files = arguments[1:]
    if not files or len(files) % 2:
        print("usage: encode_payload.py VECTORS OUT [VECTORS OUT ...]", file=sys.stderr)
        return 2
    for vectors, out in zip(files[::2], files[1::2]):
        with open(vectors, encoding="utf-8") as stream:
            results = encode_file(json.load(stream))
        with open(out, "w", encoding="utf-8") as stream:
            json.dump(results, stream)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
