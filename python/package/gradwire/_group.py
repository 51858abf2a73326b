"""The ranks of a process group of PyTorch."""

import struct

import torch
import torch.distributed as dist

from ._gradwire import Keyed

_HEAD = struct.Struct("<q")
# A rank says itself how many bytes it sends. So many are received at first, and then as many as there are.
_FIRST = 1 << 24


def _size(head):
    """How many bytes a rank says it sends."""
    (size,) = _HEAD.unpack(head)
    if size < 0:
        raise RuntimeError(f"a rank says that it sends {size} bytes: it is none of gradwire's, or of another release")
    return size


def _pieces(start, size):
    """The pieces in which bytes are received from ``start`` on: so many more as came before, never all at once.

    In a gather every rank sends as many bytes as the one that says most, so that growth ends when that one sends none.
    """
    while start < size:
        end = min(size, start + max(start, _FIRST))
        yield start, end
        start = end


class Group:
    """The ranks of a process group, as :class:`gradwire.Compressor` takes them.

    Any backend that gathers and sums will do: gloo, MPI, NCCL. Bytes go through the memory of ``device``, which is the
    CPU's unless the backend is NCCL.
    """

    def __init__(self, process_group=None, device=None):
        self.process_group = process_group
        self.rank = dist.get_rank(process_group)
        self.ranks = dist.get_world_size(process_group)
        if device is None:
            on_cuda = dist.get_backend(process_group) == "nccl"
            device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
        self.device = torch.device(device)
        self._place = (None, 0)
        self._expected = {}

    def begin(self, key):
        """Says what is exchanged next. What is gathered for the same key has about the same lengths in each step."""
        self._place = (key, 0)

    def all_gather(self, mine):
        """The bytes of every rank, whose lengths may differ: in one message where lengths are as they were."""
        place = self._place
        # An exchange may gather more than once, each time other lengths.
        self._place = (place[0], place[1] + 1 if place[0] is not None else 0)
        room = self._expected.get(place, 0)
        heads = self._gather(_HEAD.pack(len(mine)) + mine[:room], _HEAD.size + room)
        sizes = [_size(head[: _HEAD.size]) for head in heads]
        most = max(sizes)
        parts = [bytes(head[_HEAD.size :][:size]) for head, size in zip(heads, sizes)]
        for start, end in _pieces(room, most):
            rests = self._gather(mine[start:end], end - start)
            parts = [part + bytes(rest[: max(size - start, 0)]) for part, rest, size in zip(parts, rests, sizes)]
        if most > room or most < room // 2:
            # Lengths that change leave room for more, so that a second message stays rare.
            self._expected[place] = most if room == 0 else most + most // 8
        return parts

    def all_to_all(self, parts):
        """Rank r receives ``parts[r]`` of every rank."""
        heads = self._gather(b"".join(_HEAD.pack(len(part)) for part in parts), _HEAD.size * self.ranks)
        sizes = [_size(head[_HEAD.size * self.rank :][: _HEAD.size]) for head in heads]
        return self._swap(parts, sizes)

    def all_reduce_sum(self, values):
        """Sums float32 in a bytearray, in place."""
        if not values:
            return
        mine = torch.frombuffer(values, dtype=torch.float32)
        there = mine if self.device.type == "cpu" else mine.to(self.device)
        dist.all_reduce(there, group=self.process_group)
        if there is not mine:
            mine.copy_(there)

    def exchange(self, peer, mine):
        """Gives bytes to one rank, and returns what it gave."""
        parts = [b""] * self.ranks
        sizes = [0] * self.ranks
        parts[peer], sizes[peer] = _HEAD.pack(len(mine)), _HEAD.size
        sizes[peer] = _size(self._swap(parts, sizes)[peer])
        parts[peer] = mine
        return self._swap(parts, sizes)[peer]

    def broadcast(self, root, mine):
        """The bytes of one rank, on every rank."""
        whose = global_rank(self.process_group, root)
        head = self._tensor(_HEAD.pack(len(mine)))
        dist.broadcast(head, whose, group=self.process_group)
        received = []
        for start, end in _pieces(0, _size(_bytes(head))):
            if self.rank == root:
                piece = self._tensor(mine[start:end])
            else:
                piece = torch.empty(end - start, dtype=torch.uint8, device=self.device)
            dist.broadcast(piece, whose, group=self.process_group)
            received.append(_bytes(piece))
        return b"".join(received)

    def _gather(self, mine, length):
        """Buffers of this length from every rank, the own one padded."""
        own = torch.zeros(length, dtype=torch.uint8)
        if mine:
            own[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        own = own.to(self.device)
        all = torch.empty(self.ranks, length, dtype=torch.uint8, device=self.device)
        dist.all_gather(list(all.unbind(0)), own, group=self.process_group)
        return [memoryview(row.numpy()) for row in all.cpu().unbind(0)]

    def _tensor(self, data):
        if not data:
            return torch.empty(0, dtype=torch.uint8, device=self.device)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)

    def _swap(self, parts, sizes):
        """Gives each other rank its part, and receives as many bytes of it as ``sizes`` says. The own part stays."""
        received = [[] for _ in parts]
        sent = [list(_pieces(0, len(part))) for part in parts]
        wanted = [list(_pieces(0, size)) for size in sizes]
        for piece in range(max(map(len, sent + wanted))):
            work = []
            for peer in (peer for peer in range(self.ranks) if peer != self.rank):
                whose = global_rank(self.process_group, peer)
                if piece < len(sent[peer]):
                    start, end = sent[peer][piece]
                    mine = self._tensor(parts[peer][start:end])
                    work.append(dist.P2POp(dist.isend, mine, whose, self.process_group))
                if piece < len(wanted[peer]):
                    start, end = wanted[peer][piece]
                    received[peer].append(torch.empty(end - start, dtype=torch.uint8, device=self.device))
                    work.append(dist.P2POp(dist.irecv, received[peer][-1], whose, self.process_group))
            self._run(work)
        theirs = [b"".join(map(_bytes, pieces)) for pieces in received]
        theirs[self.rank] = bytes(parts[self.rank])
        return theirs

    @staticmethod
    def _run(work):
        if work:
            for request in dist.batch_isend_irecv(work):
                request.wait()


def of_key(group, key):
    """The group, with authenticated messages where there is a key: every rank calls this."""
    return group if key is None else Keyed(group, key)


def global_rank(process_group, rank):
    """A rank's number among all processes."""
    if process_group is None:
        return rank
    if hasattr(dist, "get_global_rank"):
        return dist.get_global_rank(process_group, rank)
    return dist.distributed_c10d._get_global_rank(process_group, rank)


def _bytes(tensor):
    return bytes(memoryview(tensor.cpu().numpy()))
