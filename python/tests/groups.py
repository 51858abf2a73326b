"""Groups for tests: one rank alone, and ranks that are threads."""

import queue
import threading

import numpy


class Alone:
    """A group of one rank."""

    rank, ranks = 0, 1

    def all_gather(self, mine):
        return [mine]

    def all_to_all(self, parts):
        return parts

    def all_reduce_sum(self, values):
        pass

    def exchange(self, peer, mine):
        raise AssertionError

    def broadcast(self, root, mine):
        return mine


class Threads:
    """Ranks that are threads: the protocol that any group has to follow, in its plainest form."""

    def __init__(self, ranks):
        self.barrier = threading.Barrier(ranks, timeout=60)
        self.board = [None] * ranks
        self.boxes = {(of, to): queue.Queue() for of in range(ranks) for to in range(ranks)}

    def called(self, rank, name, given, got):
        """What a rank handed over in a call, and what it got: for tests that look at it."""

    def of(self, rank):
        shared = self

        class Rank(Alone):
            def gathered(self, mine):
                shared.board[rank] = mine
                shared.barrier.wait()
                all = list(shared.board)
                shared.barrier.wait()
                return all

            def all_gather(self, mine):
                all = self.gathered(mine)
                shared.called(rank, "all_gather", mine, all)
                return all

            def all_to_all(self, parts):
                got = [row[rank] for row in self.gathered(parts)]
                shared.called(rank, "all_to_all", parts, got)
                return got

            def all_reduce_sum(self, values):
                given = bytes(values)
                rows = [numpy.frombuffer(row, numpy.float32) for row in self.gathered(given)]
                total = rows[0].copy()
                for row in rows[1:]:
                    total += row
                values[:] = total.tobytes()
                shared.called(rank, "all_reduce", given, bytes(values))

            def exchange(self, peer, mine):
                shared.boxes[rank, peer].put(mine)
                shared.called(rank, "exchange", peer, mine)
                return shared.boxes[peer, rank].get(timeout=60)

            def broadcast(self, root, mine):
                return self.gathered(mine)[root]

        group = Rank()
        group.rank, group.ranks = rank, len(self.board)
        return group


def train(ranks, work):
    """Runs a function per rank in threads; what each gives."""
    group, results = Threads(ranks), [None] * ranks

    def run(rank):
        try:
            results[rank] = work(group.of(rank))
        except BaseException as error:
            results[rank] = error
            group.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
