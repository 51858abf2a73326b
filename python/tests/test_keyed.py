"""Groups and files that bear a key."""

import hashlib
import hmac
import struct

import numpy
import pytest

import gradwire
import groups

KEY = gradwire.Key(bytes(range(32)))


def test_sealed_bytes_open_with_their_key_alone():
    for data in [b"", b"payload", bytes(1000), bytearray(b"abc"), numpy.arange(9, dtype=numpy.uint8)]:
        sealed = KEY.seal(data)
        plain = bytes(data)
        # As in Rust: the kind's length and name, no number, no ranks, the length, and the bytes.
        head = b"\x06sealed" + struct.pack("<QIIQ", 0, 2**32 - 1, 2**32 - 1, len(plain))
        assert sealed == plain + hmac.new(bytes(range(32)), head + plain, hashlib.sha256).digest()
        assert KEY.open(sealed) == plain
        for changed in [sealed[:-1], sealed + b"\0", b"", bytes([sealed[0] ^ 1]) + sealed[1:], sealed[:-1] + b"\0\0"]:
            with pytest.raises(gradwire.PayloadError, match="not sealed with this key"):
                KEY.open(changed)
        with pytest.raises(gradwire.PayloadError, match="not sealed with this key"):
            gradwire.Key(bytes(32)).open(sealed)


def test_a_key_is_32_bytes_and_not_printed():
    for secret in [b"", bytes(31), bytes(33), numpy.zeros(16, numpy.uint8)]:
        with pytest.raises(ValueError, match="a key has 32 bytes"):
            gradwire.Key(secret)
    with pytest.raises(TypeError):
        gradwire.Key(None)
    assert repr(KEY) == "<gradwire.Key>"


def test_every_operation_gives_what_the_group_gives():
    def work(group):
        keyed = gradwire.Keyed(group, KEY)
        rank, ranks = keyed.rank, keyed.ranks
        found = [keyed.all_gather(bytes([rank]) * rank), keyed.all_to_all([bytes([rank, to]) * to for to in range(ranks)])]
        values = bytearray(numpy.arange(7, dtype=numpy.float32) * (rank + 1))
        keyed.all_reduce_sum(values)
        found += [bytes(values), keyed.broadcast(1, bytes([rank, 9]))]
        if rank < 2:
            found.append(keyed.exchange(1 - rank, bytes([rank]) * 3))
        assert keyed.gathered(b"x") == [b"x"] * ranks, "what else the group has"
        return found

    for rank, (gathered, dealt, summed, sent, *pair) in enumerate(groups.train(3, work)):
        assert gathered == [b"", b"\1", b"\2\2"]
        assert dealt == [bytes([of, rank]) * rank for of in range(3)]
        assert (numpy.frombuffer(summed, numpy.float32) == numpy.arange(7) * 6).all()
        assert sent == b"\1\x09"
        assert pair == ([bytes([1 - rank]) * 3] if rank < 2 else [])


@pytest.mark.parametrize("recipe", ["topk:0.1+ef", "powersgd:rank=2", "qsgd:bits=4,bucket=64+ef+twophase", "topk:0.1+ef+gtopk"])
def test_a_training_has_the_bits_of_one_without_a_key(recipe):
    def work(group, key):
        group = gradwire.Keyed(group, KEY) if key else group
        compressor = gradwire.Compressor(recipe, [[40, 30], [50]])
        means = []
        for step in range(3):
            gradient = numpy.random.default_rng(10 * step + group.rank).standard_normal(1250).astype(numpy.float32)
            compressor.exchange(gradwire.Device.cpu(), group, gradient)
            means.append(gradient.tobytes())
        return means, compressor.state()

    assert groups.train(3, lambda group: work(group, True)) == groups.train(3, lambda group: work(group, False))


class Meddling:
    """A group that changes what one of its operations gives, from a call on."""

    def __init__(self, group, name, call):
        self.inner, self.name, self.left = group, name, call
        self.rank, self.ranks = group.rank, group.ranks

    def __getattr__(self, name):
        work = getattr(self.inner, name)

        def meddled(*arguments):
            given = work(*arguments)
            self.left -= name == self.name
            if name != self.name or self.left >= 0 or self.rank != 0:
                return given
            if isinstance(given, bytes):
                return bytes([given[0] ^ 4]) + given[1:]
            return [given[0], bytes([given[1][0] ^ 4]) + given[1][1:], *given[2:]]

        return meddled


@pytest.mark.parametrize("name, recipe", [("all_gather", "topk:0.1+ef"), ("all_to_all", "none"), ("exchange", "topk:0.1+ef+gtopk")])
def test_a_message_that_was_changed_names_its_rank_and_changes_nothing(name, recipe):
    def work(group):
        # The first gather is that of nonces.
        group = gradwire.Keyed(Meddling(group, name, 1 if name == "all_gather" else 0), KEY)
        compressor = gradwire.Compressor(recipe, [[40, 30]])
        gradient = numpy.full(1200, group.rank + 1, numpy.float32)
        before = gradient.copy(), compressor.state()
        try:
            compressor.exchange(gradwire.Device.cpu(), group, gradient)
        except gradwire.GroupError as error:
            assert (gradient == before[0]).all() and compressor.state() == before[1]
            again = None
            try:
                group.all_gather(b"")
            except gradwire.GroupError as second:
                again = str(second)
            return str(error), again
        except Exception as error:
            # The other rank waits for one that has gone.
            return type(error).__name__, ""
        return "", ""

    results = trained(groups.Threads(2), work)
    assert "message of rank 1 that does not bear the group's key" in results[0][0], results
    assert "make a new group" in results[0][1]


def trained(shared, work):
    """Runs both ranks. Rank 0, whose messages are changed, may end early: then it frees rank 1.

    Rank 1 frees nobody: it may end while rank 0 still leaves the last barrier, and an abort would fail that barrier.
    """
    results = [None] * 2

    def run(rank):
        try:
            results[rank] = work(shared.of(rank))
        finally:
            if rank == 0:
                shared.barrier.abort()
                shared.boxes[0, 1].put(b"")

    threads = [groups.threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return results


def test_a_rank_with_another_key_is_named():
    def work(group):
        try:
            gradwire.Keyed(group, KEY if group.rank < 2 else gradwire.Key(bytes(32)))
        except gradwire.GroupError as error:
            return str(error)

    of_first, of_second, of_third = groups.train(3, work)
    assert "rank 2 that does not bear the group's key" in of_first and of_first == of_second
    assert "rank 0" in of_third
