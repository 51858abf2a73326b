#!/usr/bin/env python3
"""Decodes a payload to raw little-endian binary32 values.

This is an independent reader, written from docs/wire.md alone. It does its arithmetic on exact
fractions and rounds each operation once, so that it does not depend on the floating point of the
machine.

Usage: decode_payload.py PAYLOAD OUT [PAYLOAD OUT ...]

A payload that a reader must refuse gives exit status 1 and one line on stderr, and no output for it or those behind it.
"""

import os
import struct
import sys
import zlib
from fractions import Fraction

HEADER = 32
UNIT = 256
NAN_BITS = 0x7FC00000
INFINITY = float("inf")
TINY = Fraction(1, 2**60)
HUGE = Fraction(2**126)


class Refused(Exception):
    """The payload is not one that a reader accepts."""


def check(condition, message):
    if not condition:
        raise Refused(message)


# A number is a pair: its exact value, and whether its sign bit is set, which only says something new
# where the value is zero. The value is a Fraction, or a float infinity after an overflow.


def power_of_two(exponent):
    return Fraction(2**exponent) if exponent >= 0 else Fraction(1, 2**-exponent)


def rnd(fraction, negative_zero=False):
    """Rounds an exact fraction to the nearest binary32, ties to even.

    The flag gives the sign of an exact zero. A nonzero fraction that rounds to zero keeps its sign.
    """
    if fraction == 0:
        return Fraction(0), negative_zero
    negative = fraction < 0
    magnitude = abs(fraction)
    # The exponent is the one with 2^exponent <= magnitude < 2^(exponent + 1).
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < power_of_two(exponent):
        exponent -= 1
    # Below 2^-126 the spacing stays that of the subnormal numbers.
    spacing = power_of_two(max(exponent, -126) - 23)
    # Python rounds a Fraction to an integer with ties to even.
    rounded = round(magnitude / spacing) * spacing
    if rounded >= 2**128:
        rounded = INFINITY
    return (-rounded if negative else rounded), negative


def multiply(x, y):
    """Returns the rounded product of two finite numbers."""
    return rnd(x[0] * y[0], x[1] != y[1])


def divide(x, y):
    """Returns the rounded quotient of a finite number and a finite nonzero number."""
    return rnd(x[0] / y[0], x[1] != y[1])


def add(x, y):
    """Returns the rounded sum of two finite numbers. A sum of zero is -0 only if both terms are -0."""
    return rnd(x[0] + y[0], x[0] == 0 and x[1] and y[1])


def subtract(x, y):
    return add(x, (-y[0], not y[1]))


def whole(value):
    """Returns a nonnegative integer or fraction, which binary32 holds exactly, as a number."""
    return Fraction(value), False


def from_bits(bits):
    """Returns the number with these bits, or None for an infinity or a NaN."""
    negative = bits >> 31 == 1
    exponent = bits >> 23 & 0xFF
    mantissa = bits & 0x7FFFFF
    if exponent == 0xFF:
        return None
    if exponent:
        mantissa |= 0x800000
    value = mantissa * power_of_two(max(exponent, 1) - 150)
    return (-value if negative else value), negative


def to_bits(number):
    """Returns the bits of a number that has been rounded to binary32."""
    value, negative = number
    sign = 0x80000000 if negative else 0
    magnitude = abs(value)
    if magnitude == INFINITY:
        return sign | 0x7F800000
    # Multiples of 2^-149 are integers here, so that the exponent follows from the length.
    scaled = magnitude * 2**149
    assert scaled.denominator == 1
    integer = scaled.numerator
    shift = max(integer.bit_length() - 24, 0)
    mantissa = integer >> shift
    assert mantissa << shift == integer
    # The hidden bit of a normal number adds one to the exponent field by itself.
    return sign | ((shift << 23) + mantissa)


def qsgd_bucket(scalars, levels, bits):
    """Returns the function from a code to the bits of its value, for one bucket."""
    norm = from_bits(scalars[0])
    if norm is None or norm[1]:
        return lambda code: NAN_BITS
    up = whole(2**64 if norm[0] < TINY else 1)
    top = multiply(norm, up)
    step = divide(top, whole(levels))

    def decode(code):
        sign = code >> (bits - 1) == 1
        level = code & ((1 << (bits - 1)) - 1)
        # The product may be infinite, and is then above top.
        v = multiply(step, whole(level))
        if v[0] > top[0]:
            v = top
        v = divide(v, up)
        return to_bits((-v[0] if sign else v[0], sign))

    return decode


def uniform_bucket(scalars, levels):
    """Returns the function from a code to the bits of its value, for one bucket."""
    low, high = from_bits(scalars[0]), from_bits(scalars[1])
    if low is None or high is None or low[0] > high[0]:
        return lambda code: NAN_BITS
    largest = max(abs(low[0]), abs(high[0]))
    if largest >= HUGE:
        up = whole(Fraction(1, 2))
    elif largest < TINY:
        up = whole(2**64)
    else:
        up = whole(1)
    a, b = multiply(low, up), multiply(high, up)
    step = divide(subtract(b, a), whole(levels))

    def decode(code):
        # For a code of L or above the sum is not used, and may overflow, so it is not computed.
        if code >= levels:
            v = b
        else:
            v = add(a, multiply(step, whole(code)))
            if v[0] > b[0]:
                v = b
        return to_bits(divide(v, up))

    return decode


def onebit_bucket(scalars):
    """Returns the function from a code to the bits of its value, for one bucket."""
    below, above = from_bits(scalars[0]), from_bits(scalars[1])
    if below is None or above is None or below[0] > above[0]:
        return lambda code: NAN_BITS
    return lambda code: scalars[code & 1]


def natural_bucket(scalars, levels, bits):
    """Returns the function from a code to the bits of its value, for one bucket."""
    scale = from_bits(scalars[0])
    if scale is None or scale[1]:
        return lambda code: NAN_BITS

    def decode(code):
        sign = code >> (bits - 1) == 1
        level = min(code & ((1 << (bits - 1)) - 1), levels)
        v = multiply(scale, whole(power_of_two(level - levels) if level else 0))
        return to_bits((-v[0] if sign else v[0], sign))

    return decode


def sign_bucket(scalars):
    """Returns the function from a code to the bits of its value, for one bucket."""
    scale = from_bits(scalars[0])
    if scale is None or scale[1]:
        return lambda code: NAN_BITS
    return lambda code: scalars[0] | (code & 1 ^ 1) << 31


# The centroids above zero of each width, in units of 2^-13.
CENTROIDS = {
    1: (6536,),
    2: (3709, 12373),
    3: (2008, 6193, 11009, 17629),
    4: (1052, 3179, 5380, 7720, 10291, 13255, 16949, 22385),
}


def eden_bucket(scalars, levels, bits):
    """Returns the function from a code to the bits of its value, for one bucket."""
    scale = from_bits(scalars[0])
    if scale is None or scale[1]:
        return lambda code: NAN_BITS
    half = 1 << (bits - 1)

    def decode(code):
        above = code >= half
        centroid = CENTROIDS[bits][code - half if above else half - 1 - code]
        magnitude = to_bits(multiply(scale, whole(Fraction(centroid, 8192))))
        return min(magnitude, 0x7F7FFFFF) | (0 if above else 0x80000000)

    return decode


def ternary_bucket(scalars):
    """Returns the function from a code to the bits of its value, for one bucket."""
    scale = from_bits(scalars[0])
    if scale is None or scale[1]:
        return lambda code: NAN_BITS
    return lambda code: scalars[0] * (code & 1) | code >> 1 << 31


# Of each format of floats by its levels: bits of the mantissa, and the exponent of the lowest normal number.
FORMATS = {7: (1, 0), 123: (2, -14), 126: (3, -6), 127: (6, 0), 31743: (10, -14), 32639: (7, -126), 32767: (14, 0)}


def float_bucket(scalars, levels, bits):
    """Returns the function from a code to the bits of its value, for one bucket."""
    scale = from_bits(scalars[0])
    if scale is None or scale[1]:
        return lambda code: NAN_BITS
    mantissa, lowest = FORMATS[levels]

    def decode(code):
        sign = code >> (bits - 1) == 1
        c = min(code & ((1 << (bits - 1)) - 1), levels)
        e, f = c >> mantissa, c % 2**mantissa
        number = f if e == 0 else (2**mantissa + f) * power_of_two(e - 1)
        v = multiply(whole(number * power_of_two(lowest - mantissa)), scale)
        return to_bits((-v[0] if sign else v[0], sign))

    return decode


def tree_bucket(scalars, levels, bits):
    """Returns the function from a code to the bits of its value, for one bucket."""
    scale = from_bits(scalars[0])
    if scale is None or scale[1]:
        return lambda code: NAN_BITS
    up = whole(power_of_two(64) if scale[0] < power_of_two(-60) else 1)
    top = multiply(scale, up)

    def decode(code):
        level = code & 127
        if level < 2:
            m = 2 * level
        else:
            e = level.bit_length() - 1
            m = 2 * 10 ** (e - 1) * (2**e + 9 * (level + 1 - 2**e)) // 2**e
        v = top if level == 127 else multiply(divide(top, whole(2000000)), whole(m))
        v = divide(v, up)
        sign = code >> 7 == 1
        return to_bits((-v[0] if sign else v[0], sign))

    return decode


def quantile_bucket(scalars):
    """Returns the function from a code to the bits of its value, for one bucket."""
    return lambda code: NAN_BITS if from_bits(scalars[code]) is None else scalars[code]


# Of each codec by its tag: widths of a code, bits of it that are a sign, scalars of a bucket (0 for one per code), flags of the header, and what
# makes the decoder of a bucket from its scalars, the levels and the bits of a code.
CODECS = {
    1: ((2, 3, 4, 5, 6, 7, 8, 16), 1, 1, 3, qsgd_bucket),
    2: (range(1, 9), 0, 2, 2, lambda scalars, levels, bits: uniform_bucket(scalars, levels)),
    4: ((1,), 0, 2, 0, lambda scalars, levels, bits: onebit_bucket(scalars)),
    6: ((1,), 0, 1, 0, lambda scalars, levels, bits: sign_bucket(scalars)),
    7: ((2,), 1, 1, 2, lambda scalars, levels, bits: ternary_bucket(scalars)),
    8: ((4, 8, 16), 1, 1, 0, float_bucket),
    10: ((8,), 1, 1, 2, tree_bucket),
    11: (range(1, 5), 0, 1, 0, eden_bucket),
    12: (range(2, 9), 1, 1, 2, natural_bucket),
    13: ((1,), 0, 1, 0, lambda scalars, levels, bits: sign_bucket(scalars)),
    14: (range(2, 9), 0, 0, 0, lambda scalars, levels, bits: quantile_bucket(scalars)),
}


def piece_widths(bits):
    return [width for width in (16, 8, 4, 2, 1) if bits & width]


def unit_codes(data, bits):
    """Returns the 256 codes of a unit, in the order of its elements."""
    codes = [0] * UNIT
    offset = 0
    position = 0
    for width in piece_widths(bits):
        # An integer belongs to one lane and holds up to 8 slots of it in at most 32 bits.
        slots = min(8, 32 // width)
        size = slots * width // 8
        mask = (1 << width) - 1
        for group in range(8 // slots):
            for lane in range(32):
                integer = int.from_bytes(data[offset : offset + size], "little")
                offset += size
                for s in range(slots):
                    piece = integer >> (s * width) & mask
                    codes[(group * slots + s) * 32 + lane] |= piece << position
        position += width
    assert offset == len(data)
    return codes


def packed_codes(words, bits, delta):
    """Returns the codes of a unit whose Elias codes, gamma or delta, are in these bytes."""
    stream = int.from_bytes(words, "little")
    # Bits behind the words read as ones. No code of a unit is read beyond twice as many, and 1024; of delta codes, whose middles and
    # rests have 35 bits at most, 9216 more.
    size = 2 * 8 * len(words) + (10240 if delta else 1024)
    stream |= (1 << size) - (1 << 8 * len(words))
    at = 0
    exponents = []
    for _ in range(UNIT):
        start = at
        while not stream >> at & 1:
            at += 1
        exponents.append(at - start)
        at += 1
    for place in range(UNIT) if delta else ():
        # More zeros than any width's are as many as the widest's.
        zeros = min(exponents[place], 4)
        exponents[place] = (1 << zeros) - 1 + (stream >> at & ((1 << zeros) - 1))
        at += zeros
    largest = 2 ** (bits - 1) - 1
    codes = [0] * UNIT
    for place, exponent in enumerate(exponents):
        if exponent == 0:
            continue
        rest = stream >> at & ((1 << exponent) - 1)
        sign = stream >> (at + exponent) & 1
        at += exponent + 1
        level = min((1 << exponent) + rest - 1, largest)
        # Lane after lane, and in a lane slot after slot.
        codes[place % 8 * 32 + place // 8] = level | sign << (bits - 1)
    return codes


def base3_codes(words, part):
    """Returns the codes of one of the five parts of a unit in base 3."""
    plain = []
    for byte in words:
        plain += [0] * (byte - 241) if byte > 242 else [byte]
    plain = (plain + [0] * 256)[:256]
    codes = [0] * UNIT
    for word in range(16):
        five, power = divmod(16 * part + word, 5)
        for place in range(16):
            digit = plain[16 * five + 4 * (place % 4) + place // 4] // 3**power % 3
            lane, slot = 2 * word + place // 8, place % 8
            codes[slot * 32 + lane] = (0, 1, 3)[digit]
    return codes


def places_entry(entry, bits):
    """Returns the count, the low bits of a place, the bits of a level and the words of a unit; none where the page has no such entry."""
    level_bits, count = divmod(entry, 2**16)
    if count > 16384 or level_bits >= bits or (count == 0 and level_bits):
        return None
    if count == 0:
        return 0, 0, 0, 0
    low = (16384 // count).bit_length() - 1
    return count, low, level_bits, -(-(count + (16384 >> low) + count * (low + level_bits + 1)) // 32)


def places_codes(words, entry, bits):
    """Returns the codes of the 64 units of a unit of places."""
    count, low, level_bits, _ = places_entry(entry, bits)
    stream = int.from_bytes(words, "little")
    units = [[0] * UNIT for _ in range(64)]
    if count == 0:
        return units
    marks = count + (16384 >> low)
    size = low + level_bits + 1
    found = [mark for mark in range(marks) if stream >> mark & 1][:count]
    for k, mark in enumerate(found):
        record = stream >> (marks + k * size)
        place = (mark - k) * 2**low + record % 2**low
        level = min((record >> low) % 2**level_bits + 1, 2 ** (bits - 1) - 1)
        sign = record >> (low + level_bits) & 1
        if place < 16384:
            unit, rest = divmod(place, UNIT)
            units[unit][rest % 8 * 32 + rest // 8] |= level | sign << (bits - 1)
    return units


def decode_file(stream):
    """Reads a payload from a binary stream and returns the bits of its values."""
    length = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    header = stream.read(HEADER)
    check(header[:4] == b"GWIR", "the magic is wrong")
    check(header[4:5] == b"\x01", "the version is not 1")
    check(len(header) == HEADER, "the header is cut short")
    codec, bits, log_bucket, n, levels, kind, flags, entropy, reserved, words, checksum = struct.unpack(
        "<BBBQHBBB3sII", header[5:]
    )
    check(codec in CODECS, "the codec is unknown")
    widths, sign_bits, per_bucket, allowed_flags = CODECS[codec][:4]
    check(bits in widths, "the bits of a code are out of range")
    per_bucket = per_bucket or 2**bits
    most_levels = 2**bits if codec == 14 else 2 ** (bits - sign_bits) - 1
    least_levels = most_levels if codec in (10, 11, 14) else 1
    if codec == 8:
        check(levels in {4: (7,), 8: (123, 126, 127), 16: (31743, 32639, 32767)}[bits], "the levels are those of no format")
    if codec == 14:
        check(8 <= log_bucket <= 12, "the bucket is out of range")
    elif codec == 11:
        check(5 <= log_bucket <= 13, "the bucket is out of range")
    else:
        check(5 <= log_bucket <= 13 or log_bucket == 255, "the bucket is out of range")
    check(n <= 2**31, "there are too many elements")
    check(least_levels <= levels <= most_levels, "the levels are out of range")
    check(kind in (0, 1, 2), "the type of the gradient is unknown")
    check(flags & ~allowed_flags == 0, "a flag is set that the codec does not have")
    packable = codec in (1, 7)
    integers = codec == 8 and levels in (127, 32767)
    check(entropy == 0 or entropy in (1, 3, 4) and (packable or integers) or entropy == 2 and packable and bits == 2, "the entropy stage is unknown")
    check(not any(reserved), "the reserved bytes are not zero")

    bucket = max(n, 1) if log_bucket == 255 else 2**log_bucket
    buckets = -(-n // bucket)
    units = -(-n // UNIT)
    scalar_bytes = 4 * per_bucket * buckets
    unit_bytes = 32 * bits
    code_bytes = unit_bytes * units
    # Units of 256 codes in one of packed codes, and the fewest and the most words of that.
    parts, least, most = (5, 5, 64) if entropy == 2 else (1, 8, 16 * bits)
    if entropy == 3:
        most = 8 * (bits + 1 + 2 * (bits.bit_length() - 1))
    if entropy == 4:
        parts, least, most = 64, 0, 1536 if bits == 2 else 1024 + 512 * bits
    packed_units = -(-units // parts)
    table_bytes = 4 * packed_units if entropy == 4 else -(-packed_units // 4) * 4
    if entropy:
        check(least * packed_units <= words <= most * packed_units, "the words of packed codes are out of range")
        code_bytes = table_bytes + 4 * words
    else:
        check(words == 0, "there are words of packed codes, and no packed codes")
    check(length == HEADER + scalar_bytes + code_bytes, "the length is wrong")

    body = stream.read()
    check(zlib.crc32(body, zlib.crc32(header[:28])) == checksum, "the checksum is wrong")

    if entropy == 4:
        table = struct.unpack("<%dI" % packed_units, body[scalar_bytes : scalar_bytes + table_bytes])
        entries = [places_entry(entry, bits) for entry in table]
        check(all(entries), "an entry of the table is out of range")
        sizes = [4 * entry[3] for entry in entries]
    else:
        table = body[scalar_bytes : scalar_bytes + packed_units] if entropy else b""
        sizes = [4 * (byte + 1) for byte in table]
    check(not entropy or sum(sizes) == 4 * words, "the table names other words than there are")

    scalars = struct.unpack("<%dI" % (per_bucket * buckets), body[:scalar_bytes])
    values = []
    current = -1
    decode = None
    cache = {}
    start = scalar_bytes + (table_bytes if entropy else 0)
    for unit in range(units):
        size = sizes[unit // parts] if entropy else unit_bytes
        data = body[start : start + size]
        if unit % parts == parts - 1:
            start += size
        if entropy == 4:
            if unit % parts == 0:
                joined = places_codes(data, table[unit // parts], bits)
            codes = joined[unit % parts]
        elif entropy == 2:
            codes = base3_codes(data, unit % parts)
        else:
            codes = packed_codes(data, bits, entropy == 3) if entropy else unit_codes(data, bits)
        for element in range(unit * UNIT, min((unit + 1) * UNIT, n)):
            # Elements come in order, so that one cache serves the bucket at hand.
            if element // bucket != current:
                current = element // bucket
                own = scalars[current * per_bucket : (current + 1) * per_bucket]
                decode = CODECS[codec][4](own, levels, bits)
                cache = {}
            code = codes[element % UNIT]
            if code not in cache:
                cache[code] = decode(code)
            values.append(cache[code])
    return values


def main(arguments):
    files = arguments[1:]
    if not files or len(files) % 2:
        print("usage: decode_payload.py PAYLOAD OUT [PAYLOAD OUT ...]", file=sys.stderr)
        return 2
    for payload, decoded in zip(files[::2], files[1::2]):
        try:
            with open(payload, "rb") as stream:
                values = decode_file(stream)
        except (Refused, OSError) as error:
            print("%s: refused: %s" % (payload, error), file=sys.stderr)
            return 1
        with open(decoded, "wb") as out:
            out.write(struct.pack("<%dI" % len(values), *values))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
