"""Times quantizers as they are plainly written in numpy or in torch on the CPU: what `cargo xtask bench --peers` places
beside its own uniform quantization, 1-bit SGD, signs, DRIVE, EDEN, ternary codes, casts, dynamic trees, natural
compression and quantile buckets.

    python3 quantizers.py --framework torch --codec natural --size 16777216 --json out.json

Each operation is a few operations on whole arrays, as methods in training frameworks are written; but codes are packed to
their width, and random numbers are drawn within what is timed. Before it is timed, a codec is checked: the packed size, the
error of every element, and that what is drawn is unbiased.
"""

import argparse
import json
import math
import statistics
import time

from common import require


class Numpy:
    """The operations that codecs are written with; torch's names where the two differ."""

    name = "numpy"

    def __init__(self):
        self.lib = lib = require("numpy")
        self.version, self.threads = lib.__version__, 1
        self.draw = lib.random.default_rng(1)
        self.where, self.frexp, self.floor, self.sign_of = lib.where, lib.frexp, lib.floor, lib.signbit

    def normal(self, shape):
        return self.draw.standard_normal(shape, dtype=self.lib.float32)

    def uniform(self, like):
        return self.draw.random(like.shape, dtype=self.lib.float32)

    def words(self, like):
        return self.draw.integers(0, 1 << 16, like.shape, dtype=self.lib.uint32)

    def most(self, x):
        return x.max(1, keepdims=True)

    def least(self, x):
        return x.min(1, keepdims=True)

    def sum(self, x):
        return x.sum(1, keepdims=True)

    def bytes(self, x):
        return x.astype(self.lib.uint8)

    def floats(self, x):
        return x.astype(self.lib.float32)

    def ints(self, x):
        return x.astype(self.lib.int32)

    def scaled(self, x, exponent):
        return self.lib.ldexp(x, exponent)

    def bits(self, x):
        return x.view(self.lib.uint32)

    def of_bits(self, x):
        return x.view(self.lib.float32)

    def high(self, words):
        return (words >> 16).astype(self.lib.uint16)

    def low(self, halves):
        return halves.astype(self.lib.uint32) << 16

    def table(self, values):
        return self.lib.array(values, dtype=self.lib.float32)

    def take(self, table, codes):
        return table[codes]

    def place(self, edges, x):
        return self.lib.searchsorted(edges, x)

    def sort(self, x):
        order = self.lib.argsort(x, axis=1)
        return order, self.lib.take_along_axis(x, order, 1)

    def ranks(self, order, count):
        """For each element, how many times `count` elements are below it."""
        codes = self.lib.empty(order.shape, dtype=self.lib.uint8)
        of_rank = (self.lib.arange(order.shape[1]) // count).astype(self.lib.uint8)
        self.lib.put_along_axis(codes, order, of_rank[None, :], 1)
        return codes

    def gather(self, table, codes):
        return self.lib.take_along_axis(table, codes.astype(self.lib.int64), 1)

    def flags(self, x):
        return self.lib.packbits(x, axis=1)

    def of_flags(self, packed):
        return self.lib.unpackbits(packed, axis=1)


class Torch:
    """As `Numpy`."""

    name = "torch"

    def __init__(self):
        self.lib = lib = require("torch")
        self.version, self.threads = lib.__version__.split("+")[0], lib.get_num_threads()
        lib.manual_seed(1)
        lib.set_grad_enabled(False)
        self.where, self.frexp, self.floor, self.sign_of = lib.where, lib.frexp, lib.floor, lib.signbit
        self.weights = lib.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=lib.uint8)
        self.shifts = lib.tensor([7, 6, 5, 4, 3, 2, 1, 0], dtype=lib.uint8)

    def normal(self, shape):
        return self.lib.randn(shape)

    def uniform(self, like):
        return self.lib.rand(like.shape)

    def words(self, like):
        return self.lib.randint(0, 1 << 16, like.shape, dtype=self.lib.int32)

    def most(self, x):
        return x.amax(1, keepdim=True)

    def least(self, x):
        return x.amin(1, keepdim=True)

    def sum(self, x):
        return x.sum(1, keepdim=True)

    def bytes(self, x):
        return x.to(self.lib.uint8)

    def floats(self, x):
        return x.float()

    def ints(self, x):
        return x.int()

    def scaled(self, x, exponent):
        return self.lib.ldexp(x, exponent)

    def bits(self, x):
        return x.view(self.lib.int32)

    def of_bits(self, x):
        return x.view(self.lib.float32)

    def high(self, words):
        return (words >> 16).short()

    def low(self, halves):
        return halves.int() << 16

    def table(self, values):
        return self.lib.tensor(values)

    def take(self, table, codes):
        return table[codes.long()]

    def place(self, edges, x):
        return self.lib.bucketize(x, edges)

    def sort(self, x):
        values, order = x.sort(1)
        return order, values

    def ranks(self, order, count):
        of_rank = (self.lib.arange(order.shape[1]) // count).to(self.lib.uint8)
        return self.lib.empty(order.shape, dtype=self.lib.uint8).scatter_(1, order, of_rank.expand(order.shape))

    def gather(self, table, codes):
        return table.gather(1, codes.long())

    def flags(self, x):
        return (x.view(x.shape[0], -1, 8) * self.weights).sum(2, dtype=self.lib.uint8)

    def of_flags(self, packed):
        return ((packed.unsqueeze(2) >> self.shifts) & 1).view(packed.shape[0], -1)


# A codec: what is sent of buckets `x`, the values of that, and the error that an element may have. `drawn` says whether
# rounding is unbiased.


class Uniform:
    drawn = True

    def __init__(self, f, bits):
        self.f, self.bits, self.width, self.levels = f, bits, bits, (1 << bits) - 1

    def encode(self, x):
        f, low = self.f, self.f.least(x)
        step = (f.most(x) - low) / self.levels
        codes = f.bytes(f.floor((x - low) / step + f.uniform(x)).clip(0, self.levels))
        return codes if self.bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4, low, step

    def decode(self, packed, low, step):
        codes = packed if self.bits == 8 else self.f.lib.stack((packed & 15, packed >> 4), 2).reshape(len(packed), -1)
        return low + self.f.floats(codes) * step

    def bound(self, x, packed, low, step):
        return step


class OneBit:
    drawn, width = False, 1

    def __init__(self, f):
        self.f = f

    def encode(self, x):
        f, zero, above = self.f, x * 0, x >= 0
        count = f.sum(f.floats(above))
        others = (x.shape[1] - count).clip(1, None)
        return f.flags(above), f.sum(f.where(above, zero, x)) / others, f.sum(f.where(above, x, zero)) / count.clip(1, None)

    def decode(self, packed, below, above):
        return self.f.where(self.f.of_flags(packed) > 0, above, below)

    def bound(self, x, packed, below, above):
        return abs(x) + abs(below) + abs(above)


class Signs:
    drawn, width = False, 1

    def __init__(self, f):
        self.f = f

    def encode(self, x):
        return self.f.flags(x >= 0), self.f.sum(abs(x)) / x.shape[1]

    def decode(self, packed, scale):
        return self.f.where(self.f.of_flags(packed) > 0, scale, -scale)

    def bound(self, x, packed, scale):
        return abs(abs(x) - scale) + 1e-6 * scale


class Drive(Signs):
    def encode(self, x):
        return self.f.flags(x >= 0), self.f.sum(x * x) / self.f.sum(abs(x))


class Eden:
    """4 bits: the nearest of Lloyd and Max's centroids for a normal distribution."""

    drawn, width = False, 4
    half = [0.1284, 0.3880, 0.6568, 0.9423, 1.2562, 1.6180, 2.0690, 2.7326]

    def __init__(self, f):
        self.f = f
        centroids = [-c for c in reversed(self.half)] + self.half
        self.centroids = f.table(centroids)
        self.edges = f.table([(a + b) / 2 for a, b in zip(centroids, centroids[1:])])

    def encode(self, x):
        f, squares = self.f, self.f.sum(x * x)
        codes = f.bytes(f.place(self.edges, x * (x.shape[1] / squares) ** 0.5))
        scale = squares / f.sum(x * f.take(self.centroids, codes))
        return codes[:, ::2] | codes[:, 1::2] << 4, scale

    def decode(self, packed, scale):
        codes = self.f.lib.stack((packed & 15, packed >> 4), 2).reshape(len(packed), -1)
        return self.f.take(self.centroids, codes) * scale

    def bound(self, x, packed, scale):
        # Gaps between centroids are below 0.67, and above the last there is what is above it.
        return 0.34 * scale + (abs(x) - self.half[-1] * scale).clip(0, None) + 0.1 * abs(x)


class Ternary:
    drawn, width = True, 2

    def __init__(self, f):
        self.f = f

    def encode(self, x):
        f, scale = self.f, self.f.most(abs(x))
        codes = f.bytes(f.uniform(x) * scale < abs(x)) | f.bytes(f.sign_of(x)) << 1
        return codes[:, ::4] | codes[:, 1::4] << 2 | codes[:, 2::4] << 4 | codes[:, 3::4] << 6, scale

    def decode(self, packed, scale):
        codes = self.f.lib.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], 2).reshape(len(packed), -1)
        level = self.f.floats(codes & 1)
        return self.f.where(codes > 1, -level, level) * scale

    def bound(self, x, packed, scale):
        return scale


class Brain:
    """bfloat16 with stochastic rounding."""

    drawn, width = True, 16

    def __init__(self, f):
        self.f = f

    def encode(self, x):
        return (self.f.high(self.f.bits(x) + self.f.words(x)),)

    def decode(self, halves):
        return self.f.of_bits(self.f.low(halves))

    def bound(self, x, halves):
        return abs(x) / 128


class Scaled:
    """E4M3 with a power of two as the scale of each 32 elements, with stochastic rounding."""

    drawn, width = True, 8

    def __init__(self, f):
        self.f = f
        number = lambda code: (code & 7) / 512 if code < 8 else (1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 7)
        self.numbers = f.table([-number(code & 127) if code > 127 else number(code) for code in range(256)])

    def encode(self, x):
        f = self.f
        fraction, exponent = f.frexp(f.most(abs(x)))
        # 448 is the largest number.
        exponent = f.where(fraction > 0.875, exponent + 1, exponent) - 9
        y = f.scaled(abs(x), -exponent)
        e = (f.frexp(y)[1] - 1).clip(-6, None)
        steps = f.floor(f.scaled(y, 3 - e) + f.uniform(x))
        return f.bytes(8 * (e + 6) + steps) | f.bytes(f.sign_of(x)) << 7, exponent

    def decode(self, codes, exponent):
        return self.f.scaled(self.f.take(self.numbers, codes), exponent)

    def bound(self, x, codes, exponent):
        return abs(x) / 8 + self.f.scaled(x * 0 + 1, exponent - 9)


class Tree:
    """Dettmers' 8 bit: the nearest of 128 levels in seven decades of the largest magnitude."""

    drawn, width = False, 8

    def __init__(self, f):
        self.f = f

        def level(l):
            if l < 2:
                return 2 * l
            e = l.bit_length() - 1
            return 2 * 10 ** (e - 1) * (2**e + 9 * (l + 1 - 2**e)) // 2**e

        values = [level(l) / 2e6 for l in range(127)] + [1.0]
        self.edges = f.table([(a + b) / 2 for a, b in zip(values, values[1:])])
        self.values = f.table(values)

    def encode(self, x):
        f, scale = self.f, self.f.most(abs(x))
        return f.bytes(f.place(self.edges, abs(x) / scale)) | f.bytes(f.sign_of(x)) << 7, scale

    def decode(self, codes, scale):
        value = self.f.take(self.values, codes & 127) * scale
        return self.f.where(codes > 127, -value, value)

    def bound(self, x, codes, scale):
        # Half the widest distance of levels.
        return scale * 0.00704


class Natural:
    drawn, width = True, 8

    def __init__(self, f):
        self.f = f

    def encode(self, x):
        f = self.f
        fraction, exponent = f.frexp(abs(x))
        power = exponent - 1 + f.where(f.uniform(x) < 2 * fraction - 1, exponent * 0 + 1, exponent * 0)
        fraction, top = f.frexp(f.most(abs(x)))
        top = f.where(fraction == 0.5, top - 1, top)
        level = f.where(abs(x) > 0, power - top + 127, power * 0).clip(0, None)
        return f.bytes(level) | f.bytes(f.sign_of(x)) << 7, top

    def decode(self, codes, top):
        f, level = self.f, codes & 127
        value = f.scaled(f.floats(level > 0), f.ints(level) - 127 + top)
        return f.where(codes > 127, -value, value)

    def bound(self, x, codes, top):
        return abs(x) * 1.0001


class Quantiles:
    """SketchML's quantile buckets: 64 of each 4096 elements, of equal numbers, each with its mean. Codes of 6 bits, in bytes."""

    drawn, width = False, 8

    def __init__(self, f):
        self.f = f

    def encode(self, x):
        order, values = self.f.sort(x)
        count = x.shape[1] // 64
        codes = self.f.ranks(order, count)
        return codes, values.reshape(len(x), 64, count).mean(2)

    def decode(self, codes, means):
        return self.f.gather(means, codes)

    def bound(self, x, codes, means):
        return self.f.most(x) - self.f.least(x)


CODECS = {
    "uniform": [("4 bit / 512", 512, lambda f: Uniform(f, 4)), ("8 bit / 512", 512, lambda f: Uniform(f, 8))],
    "1-bit SGD": [("1 bit / 64", 64, OneBit), ("1 bit / 512", 512, OneBit)],
    "EF-SignSGD": [("1 bit / 8192", 8192, Signs)],
    "DRIVE": [("1 bit / 8192", 8192, Drive)],
    "EDEN": [("4 bit / 8192", 8192, Eden)],
    "ternary": [("2 bit / 512", 512, Ternary)],
    "float": [("16 bit / 8192", 8192, Brain)],
    "float scaled": [("8 bit / 32", 32, Scaled)],
    "tree": [("8 bit / 512", 512, Tree)],
    "natural": [("8 bit / 512", 512, Natural)],
    "quantile": [("6 bit / 4096", 4096, Quantiles)],
}


def check(name, codec, x):
    """Ends the process unless the codec does what it says."""
    sent = codec.encode(x)
    decoded, packed = codec.decode(*sent), sent[0]
    itemsize = packed.itemsize if hasattr(packed, "itemsize") else packed.element_size()
    count = packed.shape[0] * packed.shape[1] * itemsize
    if 8 * count != codec.width * x.shape[0] * x.shape[1]:
        raise SystemExit(f"{name}: {count} bytes of codes")
    over = float((abs(decoded - x) - codec.bound(x, *sent) * (1 + 1e-5)).max())
    if not over <= 1e-6:
        raise SystemExit(f"{name}: an element's error is {over} over its bound")
    mean, scatter = float((decoded - x).mean()), float((decoded - x).std())
    # Six standard deviations of a mean of so many.
    if codec.drawn and not abs(mean) <= 6 * scatter / math.sqrt(x.shape[0] * x.shape[1]):
        raise SystemExit(f"{name}: the errors' mean is {mean}, and they scatter by {scatter}")


def median_seconds(work, repeats):
    work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=("numpy", "torch"), required=True)
    parser.add_argument("--codec", choices=sorted(CODECS), action="append", help="one or more; all without it")
    parser.add_argument("--size", type=int, default=1 << 24, help="elements (default 2^24), rounded down to whole buckets")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    f = Numpy() if options.framework == "numpy" else Torch()

    rows = []
    for series in options.codec or CODECS:
        for setting, bucket, make in CODECS[series]:
            codec, n = make(f), max(options.size // bucket, 1) * bucket
            x = f.normal((n // bucket, bucket))
            check(f"{series}, {setting}", codec, x[: max(1, (1 << 20) // bucket)])
            sent, sum_of = codec.encode(x), x * 0

            def decode_add():
                nonlocal sum_of
                sum_of += 0.5 * codec.decode(*sent)

            for op, work in (("encode", lambda: codec.encode(x)), ("decode_add", decode_add)):
                seconds = median_seconds(work, options.repeats)
                row = {"peer": f.name, "version": f.version, "variant": "whole arrays", "threads": f.threads, "best": True}
                row |= {"op": f"{series.replace('-', '').lower()}_{op}", "setting": setting, "elements": n}
                rows.append(row | {"seconds_median": seconds, "gradient_gbps": 4e-9 * n / seconds})
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(rows, file)


if __name__ == "__main__":
    main()
