"""Calls with arguments of every kind: each returns or raises an Exception. A panic would be none."""

import collections
import random
import threading

import numpy
import pytest

import gradwire
from groups import Alone
from test_numpy import Foreign

CALLS = 20_000

TEXTS = """none qsgd:bits=4 qsgd:bits=4,bucket=64+ef topk:0.1+ef topk:0.1 topk:k=0 topk:0.1+qsgd:bits=8+elias+ef
topk:0.1+ef+gtopk powersgd:rank=2 randomk:0.1 dct+topk:0.1+ef eden:bits=2 sign:unit+vote qsgd:bits=8+ef+twophase onebit
float:e4m3,scaled quantile:levels=16,bucket=256 dgc:ratio=0.1 qsgd+diana none+finite grace:dgc grace:no x topk:above=nan
""".split() + [""]

PLAIN = [
    None, 0, 1, 2, -1, 2**31, 2**32, 2**63, 2**64, 1.5, float("nan"), True, "abc", b"", b"GWIR" + bytes(40), bytearray(32),
    (), {}, object(), [], [None], [b""], [[64, 48]], [[3, 2**20], [7]], [[0]], [[2**63, 2]], [["a"]],
]  # fmt: skip

SIZES = [256, 1000, 3072]


class Odd(Alone):
    """A group that says and answers anything."""

    def __init__(self, draws):
        self.draws = draws
        self.rank = draws.choice([0, 0, 0, 1, 5, -1, 2**33, None, "0", 1.5])
        self.ranks = draws.choice([1, 1, 1, 2, 3, 0, -1, 2**33, 2**31, None])

    def all_gather(self, mine):
        if self.draws.random() < 0.6:
            return [mine] * (self.ranks if self.ranks in (1, 2, 3) else 1)
        turned = mine[:6] + b"\1" + mine[7:]
        return self.draws.choice([None, 7, [], [b""], [mine, mine], b"xx", [None], [bytes(len(mine))], [mine[:-1]], [turned]])

    def all_to_all(self, parts):
        return parts if self.draws.random() < 0.5 else self.all_gather(parts[0] if parts else b"")

    def all_reduce_sum(self, values):
        if self.draws.random() < 0.3:
            values[:] = self.draws.choice([b"", bytes(3), bytes(len(values)), b"\xff" * len(values)])

    def exchange(self, peer, mine):
        return self.draws.choice([None, b"", mine, mine[:-1], bytes(len(mine))])

    def broadcast(self, root, mine):
        return self.draws.choice([None, b"", mine, mine[:-1]])


class Caller:
    """Draws calls, and keeps what they made."""

    def __init__(self, seed):
        self.draws = random.Random(seed)
        self.made = []

    def array(self):
        draws = self.draws
        dtype = draws.choice(["f4"] * 6 + ["f2", "f8", "i4", "bool", "c8"])
        array = numpy.random.default_rng(1).standard_normal(draws.choice([0, 1, 31, *SIZES, *SIZES])).astype(dtype)
        if dtype == "f4" and len(array) and draws.random() < 0.1:
            array[-1] = draws.choice([numpy.nan, numpy.inf, 3e38, 1e-45])
        kind = draws.choice(["plain"] * 6 + ["strided", "frozen", "foreign"])
        if kind == "strided":
            return array.reshape(-1, 1)[::2]
        array.flags.writeable = kind != "frozen"
        return Foreign(array) if kind == "foreign" else array

    def value(self):
        kinds = [self.array, lambda: self.draws.choice(TEXTS), lambda: Odd(self.draws), gradwire.Device.cpu]
        kinds += [lambda: self.draws.choice(PLAIN)] * 2
        if self.made:
            kinds.append(lambda: self.draws.choice(self.made))
        return self.draws.choice(kinds)()

    def of(self, kind):
        return [made for made in self.made if isinstance(made, kind)]

    def target(self):
        owner = self.draws.choice([gradwire.Device.cpu(), None, None, *self.of(gradwire.Compressor)])
        if owner is None:
            return self.draws.choice([gradwire.encode, gradwire.decode, gradwire.recipe, gradwire.Payload, gradwire.Compressor])
        # What opens a GPU depends on the machine.
        names = {name for name in dir(owner) if not name.startswith("_")} - {"open", "cuda", "wgpu"}
        return self.draws.choice([value for value in (getattr(owner, name) for name in sorted(names)) if callable(value)])

    def expected(self, name):
        """Arguments of the right types."""
        size = self.draws.choice(SIZES)
        payloads = self.of(gradwire.Payload) or [b""]
        return {
            "encode": lambda: [self.draws.choice(TEXTS), self.array()],
            "Compressor": lambda: [self.draws.choice(TEXTS), [[64, 48]] if size == 3072 else [[size]]],
            "Payload": lambda: [bytes(self.draws.choice(payloads))],
            "decode": lambda: [self.draws.choice(payloads)],
            "decode_add": lambda: [self.draws.choice(payloads), self.array()],
            "decode_sum": lambda: [self.draws.choices(payloads, k=2), self.array()],
            "exchange": lambda: [gradwire.Device.cpu(), self.draws.choice([Odd(self.draws), Alone()]), self.array()],
            "restore": lambda: [[made.state() for made in self.of(gradwire.Compressor)[:1]], 0, 1],
            "take_over": lambda: [self.of(gradwire.Compressor)[:1]],
            "recipe": lambda: [self.draws.choice(TEXTS)],
            "residual_into": lambda: [self.array()],
            "owner_residual_into": lambda: [self.array()],
        }.get(name, list)()

    def call(self):
        """The name of what was called, and what became of it."""
        target = self.target()
        name, draws = target.__name__, self.draws
        arguments = self.expected(name)
        if draws.random() < 0.3:
            arguments = [self.value() for _ in range(draws.randrange(4))]
        elif arguments and draws.random() < 0.3:
            arguments[draws.randrange(len(arguments))] = self.value()
        named = {
            "encode": ["run", "step", "worker", "tensor", "residual"],
            "exchange": ["in_place"],
            "Compressor": ["names", "rules", "small"],
        }.get(name, [])
        named = {word: self.value() for word in named if draws.random() < 0.15}
        try:
            result = target(*arguments, **named)
        except Exception as error:
            return name, type(error).__name__
        if isinstance(result, (gradwire.Payload, gradwire.Compressor)):
            self.made = [*self.made, result][-12:]
        return name, "done"


@pytest.mark.parametrize("seed", [1, 2])
def test_no_call_panics(seed):
    caller = Caller(seed)
    found = collections.Counter(caller.call() for _ in range(CALLS))
    done = {name: count for (name, outcome), count in found.items() if outcome == "done"}
    raised = {name for name, outcome in found if outcome != "done"}
    expected = {"encode", "decode", "decode_add", "decode_sum", "exchange", "restore", "residual_into", "Compressor", "Payload"}
    assert expected <= raised and expected <= done.keys(), found
    assert all(done[name] >= 10 for name in expected), done


def test_input_that_another_thread_writes():
    """numpy lets go of Python's lock while it copies, so that an encode may read both of two gradients."""
    draws = numpy.random.default_rng(0)
    written = [draws.standard_normal(1 << 18, dtype=numpy.float32) * 10.0**scale for scale in (0, 1, -2)]
    gradient, ends = written[0].copy(), threading.Event()

    def write():
        while not ends.is_set():
            for each in written:
                numpy.copyto(gradient, each)

    writer, device, made = threading.Thread(target=write), gradwire.Device.cpu(), collections.Counter()
    writer.start()
    try:
        for text in ["topk:0.01", "topk:0.1,persign", "topk:above=1", "topk:k=3,block=1024", "topk:0.01,estimate=sidco",
                     "topk:0.05+qsgd:bits=4,bucket=64", "qsgd:bits=4,bucket=64+elias", "quantile:levels=16,bucket=256",
                     "ternary:bucket=64+base3"]:  # fmt: skip
            for _ in range(60):
                try:
                    device.decode(device.encode(text, gradient))
                except gradwire.SettingError as error:
                    assert text.startswith("topk") and "changed while it was read" in str(error), error
                made[text] += 1
    finally:
        ends.set()
        writer.join()
    assert set(made.values()) == {60}, made
