"""Steps over groups that answer anything: ``python fuzz_groups.py --seconds 60``.

A step has to end as one of the package's errors or as Python's own for wrong types and values, and gradient and state are
then as they were. After a step that was made, undo takes it back, to the bit. After either, a step over an honest group
gives what it gives a compressor that met nobody else.
"""

import argparse
import functools
import random
import threading
import time
import zlib

import numpy

import gradwire
import groups
from groups import Alone

RECIPES = """none+momentum=0.5 none+peers:norm=60 qsgd:bits=4,bucket=64+ef qsgd:bits=2+noef+elias ternary:bucket=64+base3 onebit
topk:0.1+ef topk:0.1+qsgd:bits=4,bucket=32+ef topk:0.1+ef+gtopk topk:0.1+ef21 qsgd:bits=4,bucket=64+ef+twophase sign:unit+vote
powersgd:rank=2 powersgd:rank=2+qsgd:bits=8,bucket=64 randomk:0.1 eden:bits=2,bucket=64 dct:block=8+topk:0.1+ef
dgc:ratio=0.1,clip=3 qsgd:bits=4,bucket=64+diana topk:0.1+ef+finite qsgd:bits=4+ef+peers:norm=99""".split()
SHAPES = [[16, 12], [40], [7, 9]]
ELEMENTS = 16 * 12 + 40 + 7 * 9

# What may be raised. A panic of Rust is none of them.
RAISED = (gradwire.Error, ValueError, TypeError, OverflowError, AttributeError, MemoryError, RuntimeError)


STEPS = 3


class Recorded(groups.Threads):
    """Two honest ranks that are threads, and what each of them got in each call."""

    def __init__(self):
        super().__init__(2)
        self.got = [[], []]

    def called(self, rank, name, given, got):
        # Of a pair, what is noted is what was given: the other one got it.
        self.got[1 - rank if name == "exchange" else rank].append(got)


@functools.cache
def honest(recipe, small):
    """Of three steps of two honest ranks: what each rank got in each call of each step, and its means and states."""
    shared, steps = Recorded(), [[], []]

    def work(group):
        compressor = gradwire.Compressor(recipe, SHAPES, small=small)
        for number in range(STEPS):
            mean = step(compressor, group, number)
            # Nobody is in a call, so that what was noted is of this step.
            shared.barrier.wait()
            steps[group.rank].append((shared.got[group.rank], mean, compressor.state()))
            shared.barrier.wait()
            if group.rank == 0:
                shared.got = [[], []]
            shared.barrier.wait()

    def run(rank):
        try:
            work(shared.of(rank))
        except BaseException:
            shared.barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert [len(all) for all in steps] == [STEPS] * 2, f"{recipe}: honest ranks failed"
    return steps


class Honest(Alone):
    """A rank beside which the other one does what it did with honest ranks."""

    def __init__(self, rank, answers):
        self.rank, self.ranks, self.answers = rank, 2, list(answers)

    def next(self):
        return self.answers.pop(0)

    def all_gather(self, mine):
        # After a step that was taken back, ranks ask each other once more whether they agree.
        heads = isinstance(self.answers[0], list) and {len(head) for head in self.answers[0]} == {24} if self.answers else False
        if len(mine) == 24 and mine[:4] == b"GWST" and not heads:
            return [mine, mine]
        return self.next()

    def all_to_all(self, parts):
        return self.next()

    def all_reduce_sum(self, values):
        values[:] = self.next()

    def exchange(self, peer, mine):
        return self.next()


def sealed(message):
    """Gives the payloads of a message the checksums of their bytes, as far as its lengths are right."""
    at = 24
    while at + 8 <= len(message):
        length = int.from_bytes(message[at : at + 8], "little")
        payload = message[at + 8 : at + 8 + length]
        if len(payload) < length:
            return
        if len(payload) >= 32:
            message[at + 36 : at + 40] = zlib.crc32(payload[:28] + payload[32:]).to_bytes(4, "little")
        at += 8 + length


class Lying(Honest):
    """The same, with answers that are edited or replaced. After the last one, it has this rank's own bytes."""

    def __init__(self, draws, rank, answers):
        super().__init__(rank, answers)
        self.draws, self.calm = draws, draws.random()

    def or_own(self, own):
        return self.next() if self.answers else own

    def edited(self, data):
        """Bytes with a few edits, or something else."""
        draws = self.draws
        if draws.random() < self.calm:
            return data
        edits = bytearray(data)
        for _ in range(draws.randrange(1, 4)):
            at = draws.randrange(len(edits) + 1)
            kind = draws.randrange(7)
            if kind == 0 and at < len(edits):
                edits[at] ^= 1 << draws.randrange(8)
            elif kind == 1:
                del edits[at:]
            elif kind == 2:
                edits += bytes(draws.randrange(40))
            elif kind == 3 and at < len(edits):
                edits[at] = draws.choice([0, 1, 2, 127, 255])
            elif kind == 4:
                edits[at : at + 4] = draws.choice([b"\0\0\x80\x7f", b"\0\0\xc0\x7f", b"\xff" * 4, bytes(4), b"GWIR", b"GWST"])
            elif kind == 5:
                edits[at : at + 8] = draws.choice([2**63, 2**40, 2**32, 2**31 - 1, 24, 0]).to_bytes(8, "little")
            else:
                other = draws.choice([None, 7, "x", [], b"", memoryview(b"abc"), edits])
                return bytes(edits) if draws.random() < 0.7 else other
        if draws.random() < 0.7:
            sealed(edits)
        return draws.choice([bytes, bytearray, memoryview])(edits)

    def list(self, all):
        draws = self.draws
        if draws.random() > 0.02:
            return all
        return draws.choice([all[:1], all + all[:1], [], None, 3, tuple(all), iter(all), [None, None], all[0]])

    def fail(self):
        if self.draws.random() < 0.02:
            raise self.draws.choice([OSError("gone"), KeyError(1), ValueError("no"), RuntimeError("late"), MemoryError()])

    def all_gather(self, mine):
        self.fail()
        all = list(self.or_own([mine, mine]))
        all[1 - self.rank] = self.edited(all[1 - self.rank])
        return self.list(all)

    def all_to_all(self, parts):
        self.fail()
        all = list(self.or_own(parts))
        all[1 - self.rank] = self.edited(all[1 - self.rank])
        return self.list(all)

    def all_reduce_sum(self, values):
        self.fail()
        values[:] = self.or_own(bytes(values))
        if self.draws.random() > max(self.calm, 0.8):
            values[:] = self.draws.choice([b"", values[:-1], b"\xff" * len(values), b"\0\0\x80\x7f" * (len(values) // 4)])

    def exchange(self, peer, mine):
        self.fail()
        return self.edited(self.or_own(mine))


def gradient_of(rank, number):
    return numpy.random.default_rng(2 * number + rank).standard_normal(ELEMENTS).astype(numpy.float32)


def step(compressor, group, number):
    gradient = gradient_of(group.rank, number)
    compressor.exchange(gradwire.Device.cpu(), group, gradient)
    return gradient.tobytes()


def one(draws, counts):
    """A compressor, steps of before, a step over a lying group, and an honest one."""
    recipe, small, rank, before = draws.choice(RECIPES), draws.choice([0, 0, 64]), draws.randrange(2), draws.randrange(STEPS)
    steps = honest(recipe, small)[rank]
    compressor = gradwire.Compressor(recipe, SHAPES, small=small)
    what = f"{recipe} on rank {rank} after {before} steps"
    for number, (answers, mean, state) in enumerate(steps[:before]):
        assert step(compressor, Honest(rank, answers), number) == mean, f"{what}: step {number}"
        assert compressor.state() == state, f"{what}: state of step {number}"
    state, (answers, mean, after) = compressor.state(), steps[before]
    gradient = gradient_of(rank, before)
    try:
        compressor.exchange(gradwire.Device.cpu(), Lying(draws, rank, answers), gradient)
    except RAISED as error:
        counts[type(error).__name__] = counts.get(type(error).__name__, 0) + 1
        assert str(error), f"{what}: an error without a text"
        assert gradient.tobytes() == gradient_of(rank, before).tobytes(), f"{what}: the gradient changed: {error}"
    else:
        counts["made"] = counts.get("made", 0) + 1
        compressor.undo()
    assert compressor.state() == state, f"{what}: another state"
    assert step(compressor, Honest(rank, answers), before) == mean, f"{what}: another mean"
    assert compressor.state() == after, f"{what}: another state after an honest step"


def fuzz(seed, more):
    """Fuzzes while ``more`` says so; what became of the steps."""
    counts, number = {}, 0
    while more(number):
        draws = random.Random(f"{seed} {number}")
        try:
            one(draws, counts)
        except BaseException:
            print(f"failed: --seed {seed} --only {number}")
            raise
        number += 1
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="one number of a seed, as a failure prints it")
    given = parser.parse_args()
    if given.only is not None:
        print(one(random.Random(f"{given.seed} {given.only}"), {}))
        return
    end = time.monotonic() + given.seconds
    counts = fuzz(given.seed, lambda _: time.monotonic() < end)
    print(f"seed {given.seed}: {sum(counts.values())} steps over lying groups: {counts}")


if __name__ == "__main__":
    main()
