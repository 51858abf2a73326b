"""Readers of the messages and states of docs/wire.md, written from that page alone.

Payloads of quantizers are read by tests/python/decode_payload.py, which is written from the page too. Every reader
takes all of its bytes, and refuses what is left. Numbers are numpy's float32, each operation of which is rounded once.
"""

import functools
import io
import pathlib
import re
import struct
import sys
import zlib

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"))

import decode_payload

F = numpy.float32


class Bytes:
    """Takes bytes off the front."""

    def __init__(self, data):
        self.data = bytes(data)

    def take(self, count):
        assert count <= len(self.data), f"{count} bytes of {len(self.data)}"
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def fields(self, layout):
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def number(self):
        return self.fields("Q")[0]

    def part(self):
        """Bytes that follow their number."""
        return self.take(self.number())

    def floats(self, count):
        return numpy.frombuffer(self.take(4 * count), "<f4").astype(F)

    def end(self):
        assert not self.data, f"{len(self.data)} bytes are left"


def checked(data):
    """The bytes before a checksum."""
    assert zlib.crc32(data[:-4]) == struct.unpack("<I", data[-4:])[0]
    return data[:-4]


# Payloads


def dense(data):
    """The values of a quantizer's payload."""
    return numpy.array(decode_payload.decode_file(io.BytesIO(data)), numpy.uint32).view(F)


def bucket_of(data):
    """The bucket of a quantizer's payload; none where it is the whole tensor."""
    return None if data[7] == 255 else 2 ** data[7]


def bits_of(words, first, count):
    """Some bits of words, from the lowest bit of the first one on."""
    return numpy.unpackbits(words[first:].view(numpy.uint8), bitorder="little")[:count]


def sparse(data):
    """The length of a sparse payload's gradient, the indices of its entries and their values."""
    read = Bytes(data)
    magic, version, codec, kind, form, n, zero, of, other, c, last, checksum = read.fields("4sBBBBQHBBIII")
    assert (magic, version, codec, zero, other, last) == (b"GWIR", 1, 3, 0, 0, 0) and kind < 4 and of < 3 and c <= n
    assert zlib.crc32(data[:28] + data[32:]) == checksum
    w = (n // c).bit_length() - 1 if c else 0
    low, high = -(-c * w // 32), -(-(c + ((n - 1) >> w)) // 32) if n else 0
    lengths = {1: c, 2: low + high, 3: -(-n // 32)}
    assert form == (0 if c == n else min(lengths, key=lambda form: (lengths[form], form)))
    words = numpy.frombuffer(read.take(4 * lengths.get(form, 0)), "<u4")
    if form == 0:
        indices = numpy.arange(n)
    elif form == 1:
        indices = words.astype(numpy.int64)
    elif form == 2:
        lows = bits_of(words, 0, c * w).reshape(c, w) @ (1 << numpy.arange(w, dtype=numpy.int64))
        ones = numpy.flatnonzero(bits_of(words, low, 32 * high))
        assert len(ones) == c
        indices = (ones - numpy.arange(c) << w) + lows
    else:
        indices = numpy.flatnonzero(bits_of(words, 0, 32 * len(words)))
    assert len(indices) == c and (numpy.diff(indices) > 0).all() and (c == 0 or indices[-1] < n)
    if kind == 0:
        values = read.floats(c)
    elif kind == 1:
        values = numpy.frombuffer(read.take(2 * c), "<f2").astype(F)
    elif kind == 2:
        values = (numpy.frombuffer(read.take(2 * c), "<u2").astype(numpy.uint32) << 16).view(F)
    else:
        values = dense(read.data)
        read.data = b""
        assert len(values) == c
    read.end()
    return n, indices, values


def spread(payload):
    """The gradient that a sparse payload is decoded to."""
    n, indices, values = payload
    gradient = numpy.zeros(n, F)
    gradient[indices] = values
    return gradient


def summed(all, weight, out=None):
    """Decoded payloads times a weight, added in order."""
    out = numpy.zeros(len(all[0]), F) if out is None else out.copy()
    for values in all:
        out += F(weight) * values
    return out


# Draws


def philox(call, tensor, step, key):
    c0, c1, c2, c3 = call, tensor, step % 2**32, step >> 32
    k0, k1 = key
    for _ in range(7):
        x, y = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = y >> 32 ^ c1 ^ k0, y % 2**32, x >> 32 ^ c3 ^ k1, x % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


def places(n, k, run, step, tensor):
    """The elements of random entries."""
    bits = max((n - 1).bit_length(), 8)
    low, high = bits // 2, bits - bits // 2
    key = run % 2**32, run >> 32 ^ 0xA4093822
    keys = philox(0, tensor, step, key) + philox(1, tensor, step, key)

    def mix(half, key, bits):
        p = (half ^ key) * 0x85EBCA6B % 2**32
        return (p ^ p >> 13) * 0xC2B2AE35 % 2**32 >> (32 - bits)

    found = []
    for j in range(k):
        while True:
            lower, upper = j % 2**low, j >> low
            for r in range(0, 8, 2):
                upper ^= mix(lower, keys[r], high)
                lower ^= mix(upper, keys[r + 1], low)
            j = upper << low | lower
            if j < n:
                break
        found.append(j)
    return found


# Rotations and cosine transforms


def blocks(n, most):
    """Where each block of so many elements begins, and its length: a power of two, the largest that fits."""
    at = 0
    while at < n:
        length = min(most, 1 << (n - at).bit_length() - 1)
        yield at, length
        at += length


def signs(n, run, step, tensor):
    """The signs of a rotation, as factors."""
    key = run % 2**32, run >> 32 ^ 0x243F6A88
    words = numpy.array([philox(call, tensor, step, key) for call in range(-(-n // 128))], "<u4")
    return numpy.where(numpy.unpackbits(words.view(numpy.uint8), bitorder="little")[:n], F(-1), F(1))


def own_run(run, worker):
    """The run in the key of a worker's signs."""
    return (run + worker * 0xD1342543DE82EF95) % 2**64


def butterflies(line, block):
    """Sums and differences of all blocks, in place."""
    for at, length in blocks(len(line), block):
        values = line[at : at + length]
        distance = 1
        while distance < length:
            pairs = values.reshape(-1, 2, distance)
            a, b = pairs[:, 0].copy(), pairs[:, 1].copy()
            pairs[:, 0], pairs[:, 1] = a + b, a - b
            distance *= 2


def rooted(line, block):
    """Each block times the root of its length, which is divided by."""
    for at, length in blocks(len(line), block):
        line[at : at + length] *= F(length**-0.5)
    return line


def rotated(line, block, run, step, tensor):
    """The rotated line of elements."""
    out = numpy.zeros(-(-len(line) // 32) * 32, F)
    out[: len(line)] = line
    out *= signs(len(out), run, step, tensor)
    butterflies(out, block)
    return rooted(out, block)


def unrotated(line, n, block, run, step, tensor):
    """The n elements of a rotated line."""
    out = line.copy()
    butterflies(out, block)
    out *= signs(len(out), run, step, tensor)
    return rooted(out, block)[:n]


def second(x):
    """sum_j x_j cos(k (2j + 1) pi / (2n)) along the first axis."""
    n = len(x)
    if n == 1:
        return x
    half, y = n // 2, numpy.empty_like(x)
    y[0::2] = second(x[:half] + x[::-1][:half])
    y[1::2] = fourth(x[:half] - x[::-1][:half])
    return y


def back(y):
    """sum_k y_k cos(k (2j + 1) pi / (2n)) along the first axis."""
    n = len(y)
    if n == 1:
        return y
    a, b = back(y[0::2]), fourth(y[1::2])
    return numpy.concatenate([a + b, (a - b)[::-1]])


def fourth(x):
    """sum_j x_j cos((2k + 1) (2j + 1) pi / (4n)) along the first axis."""
    n = len(x)
    if n == 1:
        return x * F(0.5**0.5)
    half = n // 2
    along, across = numpy.empty_like(x[:half]), numpy.empty_like(x[:half])
    for j in range(half):
        angle = (2 * j + 1) * numpy.pi / (4 * n)
        cos, sin = F(numpy.cos(angle)), F(numpy.sin(angle))
        along[j] = x[j] * cos + x[n - 1 - j] * sin
        a, b = x[j] * sin, x[n - 1 - j] * cos
        across[j] = a - b if j % 2 == 0 else b - a
    a, b = second(along), second(across)
    y = numpy.empty_like(x)
    y[0], y[n - 1] = a[0], b[0]
    for m in range(1, half):
        y[2 * m - 1], y[2 * m] = a[m] + b[half - m], a[m] - b[half - m]
    return y


def cosines(line, side, inverse):
    """The coefficients of a line of elements, or its elements."""
    out = numpy.empty_like(line)
    for at, length in blocks(len(line), side * side):
        log2 = length.bit_length() - 1
        block = line[at : at + length].reshape(2 ** (log2 // 2), -1)
        p, q = numpy.indices(block.shape)
        # Rounded once from binary64.
        factors = (2.0 ** (-(log2 - (p > 0) - (q > 0)) / 2)).astype(F)
        block = back(back(block * factors).T).T if inverse else second(second(block.T).T) * factors
        out[at : at + length] = block.reshape(-1)
    return out


def tiled(side, shapes):
    """Which element of the tensors one after another each element of the order of tiles is."""
    tiles, left, first = [], [], 0
    for rows, columns in shapes:
        numbers = first + numpy.arange(rows * columns).reshape(rows, columns)
        down, beside = rows // side, columns // side
        if down and beside:
            whole = numbers[: down * side, : beside * side].reshape(down, side, beside, side)
            tiles.append(whole.transpose(0, 2, 1, 3).reshape(-1))
            left += [numbers[: down * side, beside * side :].reshape(-1), numbers[down * side :].reshape(-1)]
        else:
            left.append(numbers.reshape(-1))
        first += rows * columns
    return numpy.concatenate(tiles + left)


# States


class Saved:
    """A compressor's state."""

    def __init__(self, data):
        magic, version, length, self.run, self.steps = (read := Bytes(checked(data))).fields("4sIQQQ")
        assert (magic, version, length) == (b"GWCO", 1, len(data))
        self.description = read.part()
        self.model = Model(self.description, self.run)
        parts, elements = self.model.parts, self.model.elements
        planes = []
        for _ in range(4 if any(part.has("ef21", "diana") for part in parts) else 2):
            plane = read.part()
            assert len(plane) in (0, 4 * elements)
            planes.append(Bytes(plane).floats(len(plane) // 4))
        self.residual, self.momentum = planes[:2]
        self.estimate, self.mean_estimate = planes[2:] or (None, None)
        self.factors = [Factors(read.part()) for part in parts if part.has("powersgd")]
        self.owners = [owned(read.part()) for part in parts if part.has("twophase") and part.feedback]
        read.end()


def owned(data):
    """Whose piece an owner's residual is of, rank and ranks, and its numbers."""
    read = Bytes(data)
    place = read.fields("II") if data else None
    numbers = read.floats(len(read.data) // 4)
    read.end()
    return place, numbers


class Factors:
    """A state of PowerSGD."""

    def __init__(self, data):
        read = Bytes(checked(data))
        fields = read.fields("4sBBBBQQQQII")
        magic, version, self.side, self.rank, self.feedback, length, self.steps = fields[:7]
        self.run, self.step, self.tensor, count = fields[7:]
        assert (magic, version, length) == (b"GWLR", 2, len(data))
        self.tensors = [read.fields("QQQ") for _ in range(count)]
        assert all(flags & ~0x2F == 0 for _, _, flags in self.tensors)
        self.sums = read.floats(self.feedback * sum(rows * columns for rows, columns, _ in self.tensors))
        self.compressed = [(rows, columns) for rows, columns, flags in self.tensors if flags & 1]
        self.sides = [[read.floats(self.rank * shape[side]) for shape in self.compressed] for side in (0, 1)]
        read.end()

    def products(self):
        """L R^T of each matrix that is compressed."""
        found = []
        for (n, m), left, right in zip(self.compressed, *self.sides):
            left, right = left.reshape(self.rank, n), right.reshape(self.rank, m)
            product = numpy.outer(left[0], right[0])
            for k in range(1, self.rank):
                product += numpy.outer(left[k], right[k])
            found.append(product.reshape(-1))
        return found


class Model:
    """Tensors and recipes, as a state describes them."""

    def __init__(self, description, run):
        self.run, self.checksum = run, zlib.crc32(struct.pack("<Q", run) + description)
        text = description.decode()
        lines = [re.fullmatch(r"\[([\d, ]*)\] (\S+)", line) for line in text.splitlines()]
        assert text.endswith("\n") and all(lines)
        self.shapes = [[int(side) for side in line[1].split(", ")] if line[1] else [] for line in lines]
        self.lengths = [int(numpy.prod(shape, dtype=int)) for shape in self.shapes]
        self.starts = numpy.cumsum([0] + self.lengths)
        self.elements = int(self.starts[-1])
        recipes = [line[2] for line in lines]
        finite = {"finite" in recipe.split("+") for recipe in recipes}
        self.guarded, self.one_policy = True in finite, len(finite) == 1
        self.whole = [index for index, recipe in enumerate(recipes) if recipe.split("+")[0] == "none"]
        self.bounded = any("+peers:" in recipes[index] for index in self.whole)
        self.parts = []
        for recipe in dict.fromkeys(recipes):
            tensors = [index for index, other in enumerate(recipes) if other == recipe]
            if tensors[0] not in self.whole:
                self.parts.append(Part(self, recipe, tensors, sum(len(part.tensors) for part in self.parts)))


class Part:
    """The tensors of a recipe."""

    def __init__(self, model, recipe, tensors, first):
        self.model, self.tensors, self.first = model, tensors, first
        self.stages = {}
        for stage in recipe.split("+"):
            name, settings = re.fullmatch(r"(\w+)[:=]?(.*)", stage).groups()
            self.stages[name] = dict(s.partition("=")[::2] for s in settings.split(",") if s)
        without = {"sign": "unit", "randomk": "unbiased"}
        brings = self.has("momentum", "onebit", "powersgd") or "stretch" in self.stages.get("ternary", {})
        brings = brings or any(self.has(name) and word not in self.stages[name] for name, word in without.items())
        bucket = next((self.stages[name].get("bucket", "8192") for name in ("eden", "drive") if self.has(name)), "1024")
        if self.has("eden", "drive") and "common" not in self.stages.setdefault("rotate", {}):
            self.stages["rotate"]["own"] = ""
        if self.has("rotate"):
            self.stages["rotate"].setdefault("block", bucket)
        self.feedback = self.has("ef") or brings and not self.has("noef", "ef21", "diana")
        self.lengths = [model.lengths[index] for index in tensors]
        self.elements = sum(self.lengths)
        starts = [numpy.arange(model.starts[index], model.starts[index + 1]) for index in tensors]
        self.places = numpy.concatenate(starts)

    def has(self, *names):
        return any(name in self.stages for name in names)

    def transform(self):
        """The side of a block of cosines, and which of the part's elements each element of the line is."""
        settings = self.stages["dct"]
        side, shapes = int(settings.get("block", 64)), [self.model.shapes[index] for index in self.tensors]
        sides = [(shape[0], int(numpy.prod(shape[1:], dtype=int))) if shape else (1, 1) for shape in shapes]
        return side, tiled(side, sides) if "tiles" in settings else numpy.arange(self.elements)

    def two_phases(self, ranks):
        return self.has("twophase") and ranks >= int(self.stages["twophase"].get("from", 1))

    def pieces(self, bucket, ranks):
        """The pieces of the owners: of each, the tensors and the elements of them from one to another."""

        def end(owners):
            at, before = self.elements * owners // ranks, 0
            for length in self.lengths:
                if at <= before + length:
                    step = bucket or max(length, 1)
                    return before + min(-(-(at - before) // step) * step, length)
                before += length
            return before

        found = []
        for owner in range(ranks):
            low, high, before, piece = end(owner), end(owner + 1), 0, []
            for tensor, length in enumerate(self.lengths):
                inner = max(low - before, 0), min(high - before, length)
                if inner[0] < inner[1]:
                    piece.append((tensor, *inner))
                before += length
            found.append(piece)
        return found


# Messages


def message(data, model, step):
    """The payloads of a message, but of a step's first."""
    digest, payloads = first_message(data, model, step)
    assert digest == 0
    return payloads


def first_message(data, model, step):
    """What a rank took of the step before, and its payloads."""
    read = Bytes(data)
    magic, version, kind, zero, found, checksum, digest = read.fields("4sBBHQII")
    assert (magic, version, zero) == (b"GWST", 1, 0)
    assert (found, checksum) == (step, model.checksum)
    payloads = []
    while read.data:
        payloads.append(read.part())
    if kind != 0:
        assert kind in (1, 2) and len(payloads) == 1 and len(payloads[0]) == 4
        return digest, ({1: "refused", 2: "not finite"}[kind], struct.unpack("<I", payloads[0])[0])
    return digest, payloads


def noted(data):
    """What a digest is of, of a message that all ranks get: its kind, and the checksum of each payload."""
    read, kinds = Bytes(data[24:]), data[5:6]
    payloads = []
    while read.data:
        payloads.append(read.part())
    return kinds + b"".join(payload[28:32] if len(payload) >= 32 else payload for payload in payloads)


def children(rank, ranks):
    """The ranks that hand their selections to this one, nearest first."""
    lowest = rank & -rank if rank else ranks
    bits = (1 << bit for bit in range(ranks.bit_length()))
    return [rank + bit for bit in bits if bit < lowest and rank + bit < ranks]


class Step:
    """What the ranks sent each other in a step, in order: the mean, and what goes into the states after it."""

    def __init__(self, calls, before, after, first):
        """`calls` have a name, what each rank handed over, and what it got. The states are those of a rank."""
        self.calls, self.before, self.after = list(calls), before, after
        self.model, self.step, self.ranks = before.model, before.steps, len(calls[0][2])
        assert (after.steps, after.description, after.run) == (self.step + 1, before.description, before.run)
        self.weight = F(1) / F(self.ranks)
        # The least power of two that is no less.
        self.power = 1 << (self.ranks - 1).bit_length()
        self.mean = numpy.full(self.model.elements, numpy.nan, F)
        # What each rank sent of each part, and what an owner sent, decoded.
        self.sent, self.owned = {}, {}
        self.noted, self.said = b"", None
        parts = self.model.parts
        gathers = [part for part in parts if self.payloads(part)]
        others = [part for part in parts if part.has("gtopk") or part.two_phases(self.ranks) or self.quantized(part)]
        bounded = self.model.bounded
        always = gathers or others or self.model.guarded or bounded
        if always or first:
            heads = [first_message(data, self.model, self.step) for data in self.take("all_gather")]
            (self.said,) = {digest for digest, _ in heads}
            gathered = [payloads for _, payloads in heads]
            expected = sum(self.payloads(part) for part in gathers) + bounded
            assert {len(payloads) for payloads in gathered} == {expected}
        whole = [index for index in self.model.whole if not self.takes_along]
        if bounded:
            values = [spread(sparse(payloads.pop())) for payloads in gathered]
            self.means_of(whole, summed(values, 1 / self.power) * F(self.power / self.ranks))
        elif whole:
            self.means_of(whole, self.reduced())
        for part in parts:
            self.exchanged(part)
        for part in gathers:
            own = [[payloads.pop(0) for _ in range(self.payloads(part))] for payloads in gathered]
            self.gathered(part, own)
        for part in parts:
            if part.has("dct"):
                self.transformed(part)
        assert not self.calls, self.calls
        # What the next step's heads say.
        self.taken = (zlib.crc32(self.noted) or 1) if always else 0

    def take(self, name):
        found, given, got = self.calls.pop(0)
        assert found == name, (found, name)
        if name == "all_gather":
            assert all(all == given for all in got)
            self.noted += b"".join(map(noted, given))
            return given
        return given, got

    def reduced(self):
        """The mean of what an all-reduce summed."""
        given, got = self.take("all_reduce")
        assert all(sum == got[0] for sum in got)
        rows = numpy.frombuffer(got[0] + bytes(-len(got[0]) % 64), "<u8").reshape(-1, 8)
        self.noted += rows.sum(0, dtype="<u8").tobytes() + rows.cumsum(0, dtype="<u8").sum(0, dtype="<u8").tobytes()
        return numpy.frombuffer(got[0], "<f4") * F(self.power / self.ranks)

    @property
    def takes_along(self):
        """Whether factors take the other tensors along."""
        (part, *others), one_policy = self.model.parts or [None], self.model.one_policy
        if others or part is None or not part.has("powersgd"):
            return False
        return one_policy and not part.has("momentum")

    def quantized(self, part):
        """Whether factors go through a quantizer."""
        others = {"powersgd", "ef", "noef", "momentum", "nesterov", "finite", "clip"}
        return part.has("powersgd") and not part.stages.keys() <= others

    def payloads(self, part):
        """The payloads of a part that a rank gathers."""
        if part.has("powersgd", "randomk", "gtopk") or part.two_phases(self.ranks):
            return 0
        return 1 if part.has("topk", "rotate") else len(part.tensors)

    def means_of(self, tensors, values):
        for index in tensors:
            length = self.model.lengths[index]
            self.mean[self.model.starts[index] :][:length], values = values[:length], values[length:]
        assert len(values) == 0

    def elements_of(self, part, values):
        """The part's elements of a selection's gradient: the whole gradient, or that of the part's tensors."""
        of_each = not {"above", "estimate", "persign", "block", "segments"} & set(part.stages["topk"])
        whole = len(self.model.parts) == 1 and of_each
        assert len(values) == (self.model.elements if whole else part.elements)
        return values[part.places] if whole else values

    def gathered(self, part, payloads):
        """Payloads of a part that all ranks gathered."""
        if part.has("topk"):
            sent = [self.elements_of(part, spread(sparse(own))) for own, in payloads]
        elif part.has("rotate"):
            sent = [dense(own) for own, in payloads]
            assert len(sent[0]) == -(-part.elements // 32) * 32
        else:
            sent = [[dense(payload) for payload in own] for own in payloads]
            assert all([len(values) for values in own] == part.lengths for own in sent)
            sent = [numpy.concatenate(own) for own in sent]
        self.sent[part.first] = sent
        if part.has("vote"):
            self.mean[part.places] = numpy.sign(numpy.sum(sent, 0))
        elif part.has("rotate"):
            settings, run = part.stages["rotate"], self.model.run
            block, own = int(settings["block"]), "own" in settings
            of_runs = [(own_run(run, rank), [line]) for rank, line in enumerate(sent)] if own else [(run, sent)]
            place = self.step, part.first
            turned = [unrotated(summed(lines, self.weight), part.elements, block, of, *place) for of, lines in of_runs]
            self.mean[part.places] = functools.reduce(numpy.add, turned)
        elif part.has("ef21", "diana"):
            self.mean[part.places] = summed(sent, self.weight, self.before.mean_estimate[part.places])
        else:
            self.mean[part.places] = summed(sent, self.weight)

    def exchanged(self, part):
        """What a part sends by other ways than the first gather."""
        if part.has("gtopk"):
            self.mean[part.places] = summed([self.tree(part)], self.weight)
        elif part.two_phases(self.ranks):
            self.mean[part.places] = self.pieces(part)
        elif part.has("randomk"):
            values = self.reduced()
            mean = numpy.zeros(part.elements, F)
            mean[places(part.elements, len(values), self.model.run, self.step, part.first)] += values
            self.mean[part.places] = mean
        elif part.has("powersgd"):
            self.low_rank(part)

    def tree(self, part):
        """The result of a tree, which goes up to rank 0 and down again. Every message is that of a pair."""
        pairs, _ = self.take("exchange")
        pairs = dict(pairs)
        self.ups, self.raw, result = {}, {}, None
        for rank in range(self.ranks):
            for child in children(rank, self.ranks):
                up, nothing = pairs.pop((child, rank))
                none, down = pairs.pop((rank, child))
                assert nothing == none == b""
                (payload,) = message(up, self.model, self.step)
                self.ups[child], self.raw[child] = self.elements_of(part, spread(sparse(payload))), payload
                assert result in (None, down)
                result = down
        assert not pairs
        self.noted += noted(result)
        (payload,) = message(result, self.model, self.step)
        self.raw[0] = payload
        return self.elements_of(part, spread(sparse(payload)))

    def pieces(self, part):
        """Pieces to their owners, and the owners' sums to all."""
        given, got = self.take("all_to_all")
        assert all(got[to][of] == given[of][to] for to in range(self.ranks) for of in range(self.ranks))
        first = [[message(data, self.model, self.step) for data in row] for row in given]
        second = [message(data, self.model, self.step) for data in self.take("all_gather")]
        self.cut = part.pieces(bucket_of(sum(first[0], [])[0]), self.ranks)
        self.raw = first, second
        lengths = [[high - low for _, low, high in piece] for piece in self.cut]
        decoded = lambda row, owner: [dense(payload) for payload in row]
        sent = [[decoded(row, owner) for owner, row in enumerate(rows)] for rows in first]
        sums = [decoded(row, owner) for owner, row in enumerate(second)]
        assert all([[len(values) for values in piece] for piece in row] == lengths for row in sent + [sums])
        flat = lambda pieces: numpy.concatenate([values for piece in pieces for values in piece])
        self.sent[part.first] = [flat(row) for row in sent]
        self.owned[part.first] = sums, sent
        return summed([flat(sums)], self.power / self.ranks)

    def low_rank(self, part):
        """Factors, and after the last of them what is not compressed. The mean is of the state after the step."""
        index = [other for other in self.model.parts if other.has("powersgd")].index(part)
        before, after = self.before.factors[index], self.after.factors[index]
        assert (before.run, before.step, before.tensor) == (self.model.run, 0, part.first)
        settings = part.stages["powersgd"]
        rounds = 1 if "onesided" in settings else 2 * int(settings.get("iterations", 1))
        side, plain = before.side, sum(n * m for n, m, flags in before.tensors if not flags & 1)
        for round in range(rounds):
            side = 1 - side
            lengths = [before.rank * shape[side] for shape in before.compressed]
            last = round == rounds - 1
            if self.quantized(part):
                gathered = [message(data, self.model, self.step) for data in self.take("all_gather")]
                sent = [[dense(payload) for payload in own] for own in gathered]
                assert all([len(values) for values in own] == lengths for own in sent)
                factor = numpy.concatenate([summed(of_ranks, self.weight) for of_ranks in zip(*sent)])
                tail = self.reduced() if last and plain else numpy.zeros(0, F)
            else:
                values = self.reduced()
                factor, tail = values[: sum(lengths)], values[sum(lengths) :]
            assert len(tail) == (plain if last else 0)
        assert side == after.side and (numpy.concatenate(after.sides[side]) == factor).all()
        products = after.products()
        tensors = range(len(self.model.shapes)) if self.takes_along else part.tensors
        for tensor, (n, m, flags) in zip(tensors, after.tensors, strict=True):
            length = self.model.lengths[tensor]
            assert n * m == length
            to = self.mean[self.model.starts[tensor] :][:length]
            if flags & 1:
                to[:] = products.pop(0)
            else:
                to[:], tail = tail[:length], tail[length:]

    def transformed(self, part):
        """Takes coefficients back."""
        side, order = part.transform()
        self.mean[part.places[order]] = cosines(self.mean[part.places], side, inverse=True)
