"""Messages and states are those of docs/wire.md: readers written from the page find every byte, and the means' bits."""

import threading

import numpy
import pytest

import gradwire
import groups
import wire

# Found where wire.py has found its sibling.
import encode_payload

RUN = 0x0123456789ABCDEF
SHAPES = [[37, 29], [5, 7, 11], [41], [131, 3], [1]]
NAMES = ["a", "b", "c", "d", "e"]
ELEMENTS = sum(int(numpy.prod(shape)) for shape in SHAPES)
F = numpy.float32


class Group(groups.Threads):
    """Ranks that are threads, and what each of them hands over and gets."""

    def __init__(self, ranks):
        super().__init__(ranks)
        self.logs = [[] for _ in range(ranks)]

    def called(self, rank, name, given, got):
        self.logs[rank].append((name, given, got))

    def calls(self):
        """What all ranks called, in order: of each call what each rank handed over and got, of pairs all at once."""
        logs, self.logs = self.logs, [[] for _ in self.logs]
        found = []
        while any(logs):
            if any(log and log[0][0] == "exchange" for log in logs):
                pairs = {}
                for rank, log in enumerate(logs):
                    while log and log[0][0] == "exchange":
                        _, peer, mine = log.pop(0)
                        pairs.setdefault((rank, peer), []).append(mine)
                found.append(("exchange", pairs, [None] * len(logs)))
                continue
            heads = [log.pop(0) for log in logs]
            assert len({name for name, _, _ in heads}) == 1
            found.append((heads[0][0], [given for _, given, _ in heads], [got for _, _, got in heads]))
        return found


def each(ranks, work):
    """Runs a function per rank in threads; what each gives, or raises."""
    results = [None] * ranks

    def run(rank):
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return results


class Training:
    """Compressors of all ranks."""

    def __init__(self, text, ranks, **settings):
        settings = {"small": 60, **settings}
        self.make = lambda: gradwire.Compressor(text, SHAPES, RUN, names=NAMES, **settings)
        self.compressors, self.group = [self.make() for _ in range(ranks)], Group(ranks)
        # What the heads of the next step say.
        self.taken = 0

    def states(self):
        return [wire.Saved(compressor.state()) for compressor in self.compressors]

    def step(self, gradients):
        """A step; the calls, and the means, or errors."""
        means = [gradient.copy() for gradient in gradients]

        def work(rank):
            self.compressors[rank].exchange(gradwire.Device.cpu(), self.group.of(rank), means[rank])
            return means[rank]

        results = each(len(means), work)
        return self.group.calls(), results

    def restore(self):
        """New compressors that go on."""
        saved = [compressor.state() for compressor in self.compressors]
        self.compressors, self.taken = [self.make() for _ in saved], 0
        for rank, compressor in enumerate(self.compressors):
            compressor.restore(saved, rank, len(saved))


def draw(ranks, step):
    return [numpy.random.default_rng([step, rank]).standard_normal(ELEMENTS, dtype=F) for rank in range(ranks)]


def same(one, other):
    return one.dtype == other.dtype == F and one.tobytes() == other.tobytes()


def follow(training, ranks, gathers_first=True, steps=2):
    """Steps, each read as the page says, with the states of another rank each time."""
    for number in range(steps):
        before, gradients = training.states(), draw(ranks, number)
        calls, means = training.step(gradients)
        after = training.states()
        assert all(isinstance(mean, numpy.ndarray) and same(mean, means[0]) for mean in means), means
        rank = (ranks - 1 + number) % ranks
        step = wire.Step(calls, before[rank], after[rank], first=gathers_first and number == 0)
        assert step.said in (None, training.taken)
        training.taken = step.taken
        assert same(step.mean, means[0])
        yield rank, gradients[rank], step


# Quantizers, selections, rotations, cosine transforms, factors, votes and estimates, through every kind of exchange.
RECIPES = [
    "none+momentum=0.9",
    "none+peers:norm=900",
    "qsgd:bits=4,bucket=64+ef+peers:norm=900",
    "topk:0.1+momentum=0.9+finite+peers:norm=900",
    "qsgd:bits=4,bucket=64+ef",
    "qsgd:bits=2,bucket=64+noef+delta",
    "ternary:bucket=32+base3+noef",
    "natural:bits=8,bucket=32+momentum=0.9",
    "sign+momentum=0.9+nesterov",
    "topk:0.05+ef",
    "topk:k=7+f16+ef:beta=0.9,gamma=0.5",
    "topk:0.3+bf16+noef",
    "topk:k=9,block=100+qsgd:bits=8,bucket=32+ef",
    "topk:0.4+qsgd:bits=4,bucket=32+elias+ef",
    "topk:0.02+momentum=0.9+nesterov",
    "topk:k=100000+ef",
    "randomk:0.1+ef",
    "randomk:k=200,unbiased",
    "eden:bits=4",
    "drive:bucket=32",
    "rotate:common+eden:bits=2,bucket=64",
    "rotate:own+qsgd:bits=4,bucket=1024",
    "rotate:block=256+qsgd:bits=4,bucket=128",
    "dct:block=8+topk:0.05+ef",
    "dct:block=8,tiles+topk:k=4,block=64+ef",
    "dct:tiles+topk:0.1+ef:beta=0.999",
    "dct:block=2,tiles+qsgd:bits=8+noef",
    "dct:block=32+randomk:0.2",
    "powersgd:rank=2",
    "powersgd:rank=3,iterations=2+noef",
    "powersgd:rank=1,onesided+momentum=0.9",
    "powersgd:rank=2+qsgd:bits=8,bucket=32",
    "powersgd:rank=2+qsgd:bits=8,bucket=32+elias+momentum=0.9",
    "powersgd:rank=2+finite",
    "randomk:0.1+finite",
    "sign:unit+vote",
    "topk:0.1+ef21",
    "qsgd:bits=6,bucket=32+diana:alpha=0.3",
    "qsgd:bits=4,bucket=32+ef+twophase",
    "qsgd:bits=8,bucket=whole+noef+twophase",
    "onebit:bucket=128+twophase:from=3",
    "quantile:levels=8,bucket=256+ef+twophase",
    "qsgd:bits=4,bucket=32+elias+ef+momentum=0.9+twophase",
    "dct:block=4+qsgd:bits=8,bucket=32+ef+twophase",
    "ternary:stretch=1.5+twophase",
    "topk:0.05+ef+gtopk",
    "topk:0.2+qsgd:bits=8,bucket=32+ef+gtopk",
    "topk:above=2+ef+gtopk+finite",
]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("text", RECIPES + [f"grace:{name}" for name, _ in gradwire.methods()])
def test_steps(text, ranks):
    for rank, gradient, step in follow(Training(text, ranks), ranks):
        before, after = step.before, step.after
        for part in step.model.parts:
            sent = step.sent.get(part.first)
            if part.has("ef21", "diana"):
                alpha = F(1 if part.has("ef21") else part.stages["diana"]["alpha"])
                for plane, given, weight in [("estimate", [sent[rank]], F(1)), ("mean_estimate", sent, step.weight)]:
                    was, now = getattr(before, plane)[part.places], getattr(after, plane)[part.places]
                    assert same(now, wire.summed(given, weight * alpha, was))
            elif part.feedback and sent and not part.has("dct", "momentum") and not part.stages.get("ef"):
                left = gradient[part.places] + before.residual[part.places] - sent[rank]
                assert same(after.residual[part.places], left)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("text", ["topk:0.1+ef", "qsgd:bits=4,bucket=32+ef+twophase", "eden:bits=2,bucket=128"])
def test_ranks(text, ranks):
    assert len(list(follow(Training(text, ranks, small=0), ranks, steps=4))) == 4


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    "codec, feedback",
    [
        ("qsgd:bits=4,bucket=32", True),
        ("onebit:bucket=64", True),
        ("qsgd:bits=2,bucket=512", False),
        ("tree:bucket=whole", True),
    ],
)
def test_two_phases(codec, feedback, ranks):
    """Pieces, the draws of both phases, and the residuals of ranks and owners."""
    training = Training(codec + ("+ef" if feedback else "+noef") + "+twophase", ranks)
    for rank, gradient, step in follow(training, ranks):
        (part,) = step.model.parts
        before, after = step.before, step.after
        residual, (place, owned) = (before.residual, before.owners[0]) if feedback else (None, (None, None))
        first, second = step.raw
        sums, sent = step.owned[part.first]
        text = codec + ("+ef" if feedback else "+noef")

        def encoded(values, worker, tensor, left):
            left = left.copy() if feedback else None
            place = {"run": RUN, "step": step.step, "worker": worker, "tensor": part.first + tensor}
            return bytes(gradwire.encode(text, values, residual=left, **place)), left

        for owner, piece in enumerate(step.cut):
            for (tensor, low, high), payload in zip(piece, first[rank][owner], strict=True):
                where = step.model.starts[part.tensors[tensor]] + numpy.arange(low, high)
                left = residual[where] if feedback else None
                again, left = encoded(gradient[where], ranks * (owner + 1) + rank, tensor, left)
                assert again == payload
                assert not feedback or same(left, after.residual[where])
        if feedback:
            # A piece without elements has no residual, and one that is new has none before the first step.
            mine = (rank, ranks) if step.cut[rank] else None
            assert place == (mine if step.step else None) and after.owners[0][0] == mine
            owned, kept = (owned if step.step else numpy.zeros(10**4, F)), after.owners[0][1]
        for index, ((tensor, low, high), payload) in enumerate(zip(step.cut[rank], second[rank], strict=True)):
            total = wire.summed([sent[of][rank][index] for of in range(ranks)], 1 / step.power)
            again, left = encoded(total, ranks * (ranks + 1) + rank, tensor, owned[: high - low] if feedback else None)
            assert again == payload
            if feedback:
                assert same(left, kept[: high - low])
                owned, kept = owned[high - low :], kept[high - low :]
        assert not feedback or len(kept) == 0


def kept_of(values, k):
    """The k entries of largest magnitude of each tensor that is not small, of those that are not zero, and the rest."""
    kept = numpy.zeros_like(values)
    for start, shape in zip(numpy.cumsum([0] + [numpy.prod(shape) for shape in SHAPES]), SHAPES):
        mine = slice(start, start + int(numpy.prod(shape)))
        order = numpy.argsort(-numpy.abs(values[mine]), kind="stable")[:k]
        kept[mine][order] = values[mine][order]
    return kept, values - kept


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_tree(ranks):
    """Who merges what with whom, what goes up, and what a merge drops."""
    training = Training("topk:k=9+ef+gtopk", ranks, small=0)
    gradients = draw(ranks, 0)
    for rank, gradient, step in follow(training, ranks, steps=1):
        own, left = zip(*[kept_of(gradient, 9) for gradient in gradients])
        own, left = list(own), list(left)
        # Children are above their parents, and the far ones last.
        for child in sorted(range(1, ranks), key=lambda child: (child & -child, child)):
            parent = child & (child - 1)
            assert same(step.ups[child], own[child])
            own[parent], dropped = kept_of(own[parent] + own[child], 9)
            left[parent] += dropped
        assert same(step.mean, wire.summed([own[0]], step.weight))
        for state, residual in zip(training.states(), left):
            assert same(state.residual, residual)


@pytest.mark.parametrize("ranks", [2, 4])
def test_draws_of_a_tree(ranks):
    """Quantized values of a merge have draws of their own; the page's encoder gives the bytes of every message."""
    training = Training("topk:k=40+qsgd:bits=8,bucket=32+ef+gtopk", ranks, small=0)
    gradients = draw(ranks, 0)
    for _, _, step in follow(training, ranks, steps=1):
        segments = [(length, min(length, 40)) for length in step.model.lengths]
        zeros = "00000000 " * ELEMENTS

        def vector(worker, **fields):
            seed = {"run": f"{RUN:x}", "worker": f"{worker:x}"}
            codec = {"codec": "qsgd", "bits": 8, "levels": 127, "bucket": 32, "norm": "max", "contractive": False}
            own = {"n": ELEMENTS, "dtype": "f32", "values": "payload", "keep": {"segments": segments}}
            return {**own, "quantizer": {**codec, "seed": seed}, "residual_before": zeros, **fields}

        def entries(payload):
            _, indices, values = wire.sparse(payload)
            return encode_payload.listed(indices), encode_payload.listed(values.view(numpy.uint32))

        texts = [encode_payload.listed(gradient.view(numpy.uint32)) for gradient in gradients]
        made = [encode_payload.encode_sparse(vector(rank, gradient=text)) for rank, text in enumerate(texts)]
        own = [bytes.fromhex(one["payload"]) for one in made]
        for rank in reversed(range(ranks)):
            for round, child in enumerate(wire.children(rank, ranks), 1):
                pair = [entries(own[rank]), entries(own[child])]
                merged = encode_payload.merge(vector(ranks * round + rank, merge=pair))
                own[rank] = bytes.fromhex(merged["payload"])
            assert own[rank] == step.raw[rank]


@pytest.mark.parametrize("text", ["dct:block=8", "dct:block=8,tiles", "dct:tiles", "dct:block=2"])
def test_coefficients(text):
    """Those of a selection of all entries are sent as they are."""
    for rank, gradient, step in follow(Training(text + "+topk:k=100000+noef", 2, small=0), 2):
        (part,) = step.model.parts
        side, order = part.transform()
        assert same(step.sent[part.first][rank], wire.cosines(gradient[part.places][order], side, inverse=False))


@pytest.mark.parametrize("block", [32, 512, 1024])
def test_rotated_gradients(block):
    """What is encoded is the rotated line of all tensors."""
    rules = [("a", "topk:k=3+ef"), ("c", "topk:k=3+ef")]
    training = Training(f"rotate:block={block}+qsgd:bits=8,bucket=64", 2, small=0, rules=rules)
    for rank, gradient, step in follow(training, 2):
        topk, part = step.model.parts
        assert part.tensors == [1, 3, 4] and part.first == 2
        line = wire.rotated(gradient[part.places], block, RUN, step.step, part.first)
        again = gradwire.encode("qsgd:bits=8,bucket=64", line, run=RUN, step=step.step, worker=rank, tensor=part.first)
        assert same(step.sent[part.first][rank], wire.dense(bytes(again)))


def test_draws_of_a_gather():
    """The tensors of a recipe draw by their numbers, after those of the recipes before."""
    training = Training("topk:0.1+ef", 2, small=0, rules=[(name, "natural:bits=4,bucket=32+noef") for name in "bd"])
    for rank, gradient, step in follow(training, 2):
        topk, natural = step.model.parts
        assert (topk.first, topk.tensors, natural.first, natural.tensors) == (0, [0, 2, 4], 3, [1, 3])
        start = step.model.starts[3]
        again = gradwire.encode(
            "natural:bits=4,bucket=32", gradient[start : start + 393], run=RUN, step=step.step, worker=rank, tensor=4
        )
        assert same(wire.dense(bytes(again)), step.sent[3][rank][385:])


@pytest.mark.parametrize(
    "text, says",
    [
        ("qsgd:bits=4,bucket=32+ef", None),
        ("qsgd:bits=4,bucket=32+ef+finite", "refused"),
        ("qsgd:bits=4,bucket=32+ef+twophase", "not finite"),
        ("qsgd:bits=4,bucket=32+ef+twophase+finite", "refused"),
        ("topk:k=9+ef+gtopk", "not finite"),
        ("topk:k=9+ef+gtopk+finite", "refused"),
    ],
)
def test_a_rank_whose_gradient_is_not_finite(text, says):
    """It says so, or sends payloads that are not finite. Who hears of it passes it on."""
    training = Training(text, 3)
    gradients = draw(3, 0)
    gradients[1][5] = numpy.inf
    model, before = training.states()[0].model, [compressor.state() for compressor in training.compressors]
    calls, results = training.step(gradients)
    said = []
    for name, given, _ in calls:
        if name in ["all_to_all", "exchange"]:
            given = [data for row in (given if name == "all_to_all" else given.values()) for data in row if data]
        said += [wire.message(data, model, 0) for data in given] if name != "all_reduce" else []
    if says is None:
        assert numpy.isnan(wire.dense(said[1][0])[:32]).all()
    else:
        assert (says, 1) in said and {name for name in said if isinstance(name, tuple)} == {(says, 1)}
    if says == "refused":
        assert all(isinstance(result, gradwire.Error) for result in results)
        assert [compressor.state() for compressor in training.compressors] == before
    else:
        assert all(numpy.isnan(result).all() for result in results)
        after = [compressor.state() for compressor in training.compressors]
        # Steps and checksum alone differ.
        assert all(a[:24] + a[32:-4] == b[:24] + b[32:-4] and b[24] == 1 for a, b in zip(before, after))


RULES = [("a", "powersgd:rank=2"), ("b", "randomk:0.1"), ("c", "topk:k=4+ef"), ("d", "eden:bits=3,bucket=64")]


@pytest.mark.parametrize("text", ["qsgd:bits=4,bucket=32+ef+twophase", "eden:bits=3,bucket=64", "none+finite"])
@pytest.mark.parametrize(
    "rules",
    [RULES, RULES[::-1][:2], RULES[1:3] + [("a", "dct:block=4+topk:k=9+ef+gtopk")], [("a", "powersgd:rank=2")]],
)
def test_recipes_beside_each_other(text, rules):
    training = Training(text, 3, small=0, rules=rules)
    expected = len({text, *dict(rules).values()} - {"none+finite"})
    assert [len(step.model.parts) for _, _, step in follow(training, 3)] == 2 * [expected]


@pytest.mark.parametrize("text", ["powersgd:rank=2", "none", "randomk:0.1"])
def test_when_ranks_agree(text):
    """Without payloads they gather in the first step, and in the first after a restored state; or never."""
    training = Training(text, 2)
    list(follow(training, 2))
    training.restore()
    list(follow(training, 2))
    list(follow(training, 2, gathers_first=False))
    list(follow(Training(text, 2, all_reduce_only=True), 2, gathers_first=False))
