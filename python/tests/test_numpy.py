"""Encode, decode and exchange without torch."""

import copy
import gc
import pickle
import resource
import threading

import numpy
import pytest

import gradwire
from groups import Alone, train

N = 10_000


@pytest.fixture
def gradient():
    return numpy.random.default_rng(7).standard_normal(N, dtype=numpy.float32)


def words(text):
    """Numbers of a golden vector: hexadecimal bits, ``*k`` behind what is there k times."""
    numbers = []
    for word in text.split():
        bits, _, times = word.partition("*")
        numbers += [int(bits, 16)] * int(times or 1)
    return numpy.array(numbers, numpy.uint32)


def feedback(vector):
    """The gradient of a golden vector, and its residual where it has one."""
    before = vector.get("residual_before")
    gradient = words(vector["gradient"]).view(numpy.float32)
    return gradient, None if before is None else words(before).view(numpy.float32)


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_golden_vectors_of_qsgd(vectors, norm):
    seen = 0
    for vector in vectors("qsgd")["vectors"]:
        if vector["dtype"] != "f32" or vector["norm"] != norm or vector["levels"] != 2 ** (vector["bits"] - 1) - 1:
            continue
        seed = {part: int(number, 16) for part, number in vector["seed"].items()}
        text = f"qsgd:bits={vector['bits']},bucket={vector['bucket'] or 'whole'}"
        text += ",l2" * (norm == "l2") + ",contractive" * vector["contractive"]
        gradient, residual = feedback(vector)
        text += "+noef" if residual is None else "+ef"
        payload = gradwire.encode(text, gradient, **seed, residual=residual)
        assert bytes(payload).hex() == vector["payload"], vector["name"]
        if residual is not None:
            assert (residual.view(numpy.uint32) == words(vector["residual_after"])).all(), vector["name"]
        decoded = gradwire.decode(bytes.fromhex(vector["payload"]))
        assert (decoded.view(numpy.uint32) == words(vector["decoded"])).all(), vector["name"]
        seen += 1
    assert seen >= 3


def test_golden_vectors_of_top_k(vectors):
    seen = 0
    for vector in vectors("topk")["vectors"]:
        if vector["dtype"] != "f32" or vector["values"] != "f32" or "keep" in vector or "quantizer" in vector:
            continue
        gradient, residual = feedback(vector)
        assert gradwire.decode(bytes.fromhex(vector["payload"])).view(numpy.uint32).tolist() == words(
            vector["decoded"]
        ).tolist()
        if "k" in vector and vector["k"]:
            text = f"topk:k={vector['k']}" + "+ef" * (residual is not None)
            payload = gradwire.encode(text, gradient, residual=residual)
            assert bytes(payload).hex() == vector["payload"], vector["name"]
            seen += 1
    assert seen >= 3


@pytest.mark.parametrize(
    "text",
    ["qsgd:bits=4,bucket=64", "uniform:bits=8", "natural:bits=8", "tree", "float:e4m3,scaled", "ternary", "topk:0.05+f16"],
)
def test_round_trip(gradient, text):
    payload = gradwire.encode(text, gradient, run=1)
    assert payload.nbytes == len(bytes(payload)) and payload.nbytes < 2.1 * N
    assert len(payload) == N
    decoded = gradwire.decode(payload)
    assert decoded.dtype == numpy.float32 and decoded.shape == (N,)
    out = numpy.full(N, numpy.nan, numpy.float32)
    assert gradwire.decode(bytes(payload), out) is out
    assert (out.view(numpy.uint32) == decoded.view(numpy.uint32)).all()
    assert gradwire.encode(text, gradient, run=1) == payload


def test_sums(gradient):
    device = gradwire.Device.cpu()
    payloads = [device.encode("qsgd:bits=8", gradient, run=1, worker=worker) for worker in range(3)]
    total, one_by_one = numpy.empty(N, numpy.float32), numpy.zeros(N, numpy.float32)
    device.decode_sum(payloads, total, 0.25)
    for payload in payloads:
        device.decode_add(payload, one_by_one, 0.25)
    assert (total == one_by_one).all()
    sparse = [device.encode("topk:k=10", gradient * sign) for sign in [1, -1]]
    device.decode_sum(sparse, total)
    assert (total == 0).all()
    with pytest.raises(gradwire.PayloadError, match="sum each kind"):
        device.decode_sum([payloads[0], sparse[0]], total)


def test_residual_is_what_was_not_sent(gradient):
    residual = numpy.zeros(N, numpy.float32)
    payload = gradwire.encode("topk:0.01+ef", gradient, residual=residual)
    assert (gradwire.decode(payload) + residual == gradient).all()
    assert (residual == 0).sum() == N // 100


def test_memory_is_used_where_it_lies(gradient):
    """The output's own memory is written, and a view of a part of an array is read without the rest."""
    whole = numpy.concatenate([gradient, numpy.full(5, numpy.nan, numpy.float32)])
    assert gradwire.encode("qsgd:bits=4+finite", whole[:N]) == gradwire.encode("qsgd:bits=4+finite", gradient)
    out = numpy.zeros(N + 2, numpy.float32)
    gradwire.decode(gradwire.encode("topk:k=3", gradient), out[1:-1])
    assert numpy.count_nonzero(out) == 3 and out[0] == out[-1] == 0
    matrix = gradient.reshape(100, 100)
    assert gradwire.encode("qsgd:bits=4", matrix) == gradwire.encode("qsgd:bits=4", gradient)
    half = gradient.astype(numpy.float16)
    assert (gradwire.decode(gradwire.encode("topk:k=10000", half)) == half).all()


class Foreign:
    """A tensor of another library: nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **asked):
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack(gradient):
    assert gradwire.encode("qsgd:bits=4", Foreign(gradient)) == gradwire.encode("qsgd:bits=4", gradient)
    out = numpy.zeros(N, numpy.float32)
    gradwire.decode(gradwire.encode("topk:k=3", gradient), Foreign(out))
    assert numpy.count_nonzero(out) == 3
    with pytest.raises(ValueError, match="contiguous"):
        gradwire.encode("qsgd:bits=4", Foreign(gradient[::2]))
    with pytest.raises(ValueError, match="contiguous"):
        gradwire.encode("qsgd:bits=4", Foreign(gradient.reshape(100, 100).T))
    with pytest.raises(TypeError, match="of float64"):
        gradwire.encode("qsgd:bits=4", Foreign(gradient.astype(numpy.float64)))


def test_payloads_pickle(gradient):
    payload = gradwire.encode("qsgd:bits=4", gradient)
    assert pickle.loads(pickle.dumps(payload)) == payload == copy.deepcopy(payload)
    assert gradwire.Payload(bytes(payload)) == payload == gradwire.Payload(memoryview(bytes(payload)))
    assert "QSGD" in repr(payload) and payload.codec == "QSGD" and payload.entries == N


def test_bad_bytes(gradient):
    good = bytes(gradwire.encode("qsgd:bits=4", gradient))
    for bad, text in [
        (b"", "bytes"),
        (good[:-1], str(len(good))),
        (b"XXXX" + good[4:], "Gradwire"),
        (good[:-1] + bytes([good[-1] ^ 1]), "checksum"),
    ]:
        with pytest.raises(gradwire.PayloadError, match=text):
            gradwire.Payload(bad)
        with pytest.raises(gradwire.PayloadError, match=text):
            gradwire.decode(bad)
    with pytest.raises(TypeError, match="a payload or its bytes"):
        gradwire.decode(3)


def test_a_payload_that_says_it_is_huge():
    """A few bytes may name 2^31 elements: they have memory if their number was expected."""
    few = numpy.zeros(1 << 25, "f4")
    few[77] = 5.0
    payload = bytes(gradwire.encode("topk:k=1", few))
    assert len(payload) < 50
    with pytest.raises(gradwire.SettingError, match="elements=33554432"):
        gradwire.decode(payload)
    for raised, given in [(gradwire.PayloadError, payload), (gradwire.SettingError, gradwire.Payload(payload))]:
        with pytest.raises(raised, match="33554432 elements, and 1000 are expected"):
            gradwire.decode(given, elements=1000)
    for decode in [gradwire.decode, gradwire.Device.cpu().decode_add]:
        with pytest.raises(gradwire.PayloadError, match="33554432 elements, and 9 are expected"):
            decode(payload, numpy.zeros(9, "f4"))
    with pytest.raises(gradwire.PayloadError, match="33554432 elements, and 9 are expected"):
        gradwire.Device.cpu().decode_sum([payload], numpy.zeros(9, "f4"))
    assert (gradwire.decode(payload, elements=1 << 25) == few).all()
    out = numpy.empty_like(few)
    assert gradwire.decode(payload, out) is out and (out == few).all()
    # As many as 16 million are had without, and more if the payload has bytes for them.
    assert len(gradwire.decode(gradwire.encode("topk:k=1", few[: 1 << 24]))) == 1 << 24
    assert len(gradwire.decode(gradwire.encode("onebit+noef", few))) == 1 << 25


@pytest.mark.parametrize(
    "make, raised, text",
    [
        (lambda g: g.astype(numpy.float64), TypeError, "float32, float16 or bfloat16"),
        (lambda g: g.astype(numpy.int32), TypeError, "convert it"),
        (lambda g: g[::2], ValueError, "ascontiguousarray"),
        (lambda g: g.reshape(100, 100).T, ValueError, "ascontiguousarray"),
        (lambda g: list(g), TypeError, "hand over a numpy array"),
        (lambda g: None, TypeError, "hand over a numpy array"),
    ],
)
def test_bad_gradients(gradient, make, raised, text):
    with pytest.raises(raised, match=text):
        gradwire.encode("qsgd:bits=4", make(gradient))


@pytest.mark.parametrize(
    "text, says",
    [
        ("qsgd:bit=4", "at byte 5"),
        ("nothing", "is no stage"),
        ("powersgd:rank=4", "gradwire.Compressor"),
        ("topk:0.01+momentum=0.9", "gradwire.Compressor"),
        ("rotate+qsgd:bits=4", "gradwire.Compressor"),
        ("eden:bits=4", "gradwire.Compressor"),
        ("signum+vote", "gradwire.Compressor"),
        ("qsgd:bits=4+noef+twophase", "gradwire.Compressor"),
        ("topk:0.01+ef+gtopk", "gradwire.Compressor"),
        ("topk:0.01,warmup=10+noef", "gradwire.Compressor"),
        ("topk:0.01+ef", "residual=numpy.zeros"),
        ("qsgd:bits=4,bucket=33", "power of two"),
    ],
)
def test_bad_codecs(gradient, text, says):
    with pytest.raises(gradwire.SettingError, match=says):
        gradwire.encode(text, gradient)


def test_bad_outputs(gradient):
    payload = gradwire.encode("qsgd:bits=4", gradient)
    with pytest.raises(gradwire.SettingError, match="10000"):
        gradwire.decode(payload, numpy.zeros(5, numpy.float32))
    with pytest.raises(TypeError, match="float32 is needed"):
        gradwire.decode(payload, numpy.zeros(N, numpy.float16))
    locked = numpy.zeros(N, numpy.float32)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        gradwire.decode(payload, locked)
    with pytest.raises(ValueError, match="share memory"):
        gradwire.encode("topk:0.01+ef", gradient, residual=gradient)
    with pytest.raises(gradwire.SettingError, match="no error feedback"):
        gradwire.encode("qsgd:bits=4", gradient, residual=numpy.zeros(N, numpy.float32))


@pytest.mark.parametrize(
    "call, needed",
    [
        (lambda g: gradwire.encode("qsgd:bits=4", g, run=-1), "from 0 to 18446744073709551615"),
        (lambda g: gradwire.encode("qsgd:bits=4", g, step=1 << 64), "from 0 to 18446744073709551615"),
        (lambda g: gradwire.encode("qsgd:bits=4", g, worker=1 << 32), "from 0 to 4294967295"),
        (lambda g: gradwire.encode("qsgd:bits=4", g, tensor=-1), "from 0 to 4294967295"),
        (lambda g: gradwire.Compressor("none", [[-4]]), "-4 was handed over"),
        (lambda g: gradwire.Compressor("none", [[4]], 10**400), "a number of 401 characters"),
        (lambda g: gradwire.Compressor("none", [[4]], small=-1), "-1 was handed over"),
        (lambda g: gradwire.Compressor("none", [[4]]).restore([b""], -1, 1), "from 0 to 4294967295"),
        (lambda g: gradwire.Compressor("none", [[N]]).exchange(gradwire.Device.cpu(), Ranked(-1, 1), g), "-1"),
        (lambda g: gradwire.Compressor("none", [[N]]).exchange(gradwire.Device.cpu(), Ranked(2, 2), g), "rank 2 of 2"),
        (lambda g: gradwire.Device.cpu().decode_add(b"", g, 10**400), "a float is needed"),
    ],
)
def test_numbers_that_do_not_fit(gradient, call, needed):
    with pytest.raises(ValueError, match=needed):
        call(gradient)


def test_not_finite(gradient):
    gradient[77] = numpy.nan
    residual = numpy.ones(N, numpy.float32)
    with pytest.raises(gradwire.NotFiniteError, match="element 77"):
        gradwire.encode("topk:0.01+ef+finite", gradient, residual=residual)
    assert (residual == 1).all()


def test_missing_backends():
    """This machine has no CUDA driver, and the package was built without WGPU; a machine that has them has no error."""
    for kind in ["cuda", "wgpu"]:
        try:
            device = getattr(gradwire.Device, kind)()
        except gradwire.UnavailableError as error:
            assert kind in str(error).lower() and len(str(error)) > 60
        else:
            assert device.kind == kind
    device = gradwire.Device.open()
    assert device.kind in ["cpu", "cuda", "wgpu"] and device.name
    assert device.kind != "cpu" or device.why


def test_recipes_and_methods():
    assert gradwire.recipe("topk:0.01+ef") == "topk:0.01+ef"
    names = dict(gradwire.methods())
    assert len(names) >= 16
    for name, recipe in names.items():
        assert gradwire.recipe(f"grace:{name}") == gradwire.recipe(recipe)


class Ranked(Alone):
    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks


def test_undo():
    """A step that is taken back leaves the state as it was, and is made anew with the same draws."""
    for text in ["qsgd:bits=4,bucket=64+ef", "topk:0.05+momentum=0.9", "powersgd:rank=2"]:
        compressor, plain = [gradwire.Compressor(text, [[64, 48]], 7) for _ in range(2)]
        for seed in range(3):
            given = numpy.random.default_rng(seed).standard_normal(64 * 48, dtype=numpy.float32)
            first, again, expected = given.copy(), given.copy(), given.copy()
            before = compressor.state()
            compressor.exchange(gradwire.Device.cpu(), Alone(), first)
            assert compressor.state() != before
            compressor.undo()
            assert compressor.state() == before and compressor.steps == seed
            compressor.exchange(gradwire.Device.cpu(), Alone(), again)
            plain.exchange(gradwire.Device.cpu(), Alone(), expected)
            assert (again == expected).all() and (first == expected).all()
    compressor.undo()
    with pytest.raises(gradwire.ExchangeError, match="no step to take back"):
        compressor.undo()


def test_a_tensor_whose_memory_changes_during_its_exchange(gradient):
    """The mean is written where the tensor lies after the step; where that is too small, nothing is written."""
    tensor, moved = Foreign(None), None

    class Moving(Alone):
        def all_gather(self, mine):
            tensor.array = moved
            return [mine]

    def exchange(text="qsgd:bits=4"):
        tensor.array = gradient.copy()
        compressor = gradwire.Compressor(text, [[len(gradient)]], 1, small=0)
        compressor.exchange(gradwire.Device.cpu(), Moving(), tensor)
        return tensor.array

    expected = gradient.copy()
    gradwire.Compressor("qsgd:bits=4", [[len(gradient)]], 1, small=0).exchange(gradwire.Device.cpu(), Alone(), expected)
    moved = numpy.zeros(len(gradient), numpy.float32)
    assert exchange() is moved and (moved == expected).all()
    for moved, says in [(numpy.zeros(7, numpy.float32), "it has 7 elements"), ("no array", "cannot be read")]:
        with pytest.raises(RuntimeError, match="changed during its exchange: .*" + says):
            exchange()
        assert isinstance(moved, str) or not moved.any()


def test_a_sum_of_another_length_is_refused():
    class Longer(Alone):
        def all_reduce_sum(self, values):
            values[:] = values + values

    compressor = gradwire.Compressor("none", [[10]], 1)
    given = numpy.ones(10, numpy.float32)
    with pytest.raises(gradwire.Error, match="80 bytes were left, and 40 are needed"):
        compressor.exchange(gradwire.Device.cpu(), Longer(), given)
    assert (given == 1).all()


@pytest.mark.parametrize(
    "text",
    ["none", "qsgd:bits=4,bucket=64+ef", "topk:0.05+ef", "powersgd:rank=2", "onebit", "qsgd:bits=8+ef+twophase"],
)
def test_exchange(text):
    """All ranks have the same bits, which are near the mean; and what is missing is in the residuals."""
    shapes = [[64, 48], [64], [40, 50]]

    def work(group):
        compressor = gradwire.Compressor(text, shapes, 7, small=0)
        draws = numpy.random.default_rng(group.rank)
        sent = numpy.zeros(compressor.elements, numpy.float64)
        given = numpy.zeros(compressor.elements, numpy.float64)
        for _ in range(20):
            gradient = draws.standard_normal(compressor.elements, dtype=numpy.float32) + 1
            given += gradient
            compressor.exchange(gradwire.Device.cpu(), group, gradient)
            sent += gradient
        assert compressor.steps == 20 and compressor.last_bytes > 0
        return sent, given

    results = train(3, work)
    assert all((results[0][0] == sent).all() for sent, _ in results)
    mean = sum(given for _, given in results) / 3
    assert numpy.linalg.norm(results[0][0] - mean) < 0.9 * numpy.linalg.norm(mean)


def test_what_an_owner_keeps():
    """With two phases the means, and what ranks and owners keep, add up to the gradients."""

    def work(group):
        compressor = gradwire.Compressor("qsgd:bits=4,bucket=64+ef+twophase", [[64, 48]], 7)
        gradient = numpy.random.default_rng(group.rank).standard_normal(64 * 48).astype(numpy.float32)
        total, sent = numpy.zeros(64 * 48), numpy.zeros(64 * 48)
        for _ in range(3):
            mean = gradient.copy()
            compressor.exchange(gradwire.Device.cpu(), group, mean)
            total, sent = total + gradient, sent + mean
        kept, owned = (numpy.empty(64 * 48, numpy.float32) for _ in range(2))
        compressor.residual_into(kept)
        compressor.owner_residual_into(owned)
        return total, sent, kept, owned

    total, sent, kept, owned = (numpy.array(all, numpy.float64) for all in zip(*train(3, work)))
    # Each mean is a third of what was sent of the sum.
    missing = total.sum(0) - 3 * sent[0] - kept.sum(0)
    assert numpy.abs(owned.sum(0)).max() > 0.01
    assert numpy.abs(missing - owned.sum(0)).max() < 1e-4
    with pytest.raises(gradwire.SettingError):
        gradwire.Compressor("none", [[4]], 1).owner_residual_into(numpy.empty(3, numpy.float32))


def test_state_with_another_number_of_ranks():
    shapes = [[64, 48]]
    new = lambda: gradwire.Compressor("topk:0.05+ef", shapes, 7)

    def work(group):
        compressor = new()
        gradient = numpy.random.default_rng(group.rank).integers(-8, 8, 64 * 48).astype(numpy.float32)
        compressor.exchange(gradwire.Device.cpu(), group, gradient)
        residual = numpy.empty(compressor.elements, numpy.float32)
        compressor.residual_into(residual)
        return compressor.state(), residual

    saved, residuals = zip(*train(3, work))
    total = numpy.zeros(64 * 48, numpy.float32)
    for rank in range(2):
        compressor, residual = new(), numpy.empty(64 * 48, numpy.float32)
        compressor.restore(list(saved), rank, 2)
        compressor.residual_into(residual)
        total += residual
        assert compressor.steps == 1
    assert (total == sum(residuals)).all()
    with pytest.raises(gradwire.StateError):
        new().restore([saved[0][:-1]], 0, 1)


def test_a_group_that_fails_changes_nothing():
    class Broken(Alone):
        def all_gather(self, mine):
            raise ConnectionError("the cable was cut")

    compressor = gradwire.Compressor("topk:0.05+ef", [[64, 48]], 7)
    gradient = numpy.ones(64 * 48, numpy.float32)
    before = compressor.state()
    with pytest.raises(gradwire.GroupError, match="the cable was cut") as caught:
        compressor.exchange(gradwire.Device.cpu(), Broken(), gradient)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert compressor.state() == before and (gradient == 1).all()
    compressor.exchange(gradwire.Device.cpu(), Alone(), gradient)
    assert compressor.steps == 1
    with pytest.raises(gradwire.SettingError, match="gradient holds 5 elements"):
        compressor.exchange(gradwire.Device.cpu(), Alone(), numpy.ones(5, numpy.float32))
    with pytest.raises(AttributeError, match="rank"):
        compressor.exchange(gradwire.Device.cpu(), object(), gradient)


def test_other_threads_run_meanwhile():
    """The GIL is released: another thread gets on while a large gradient is encoded."""
    gradient = numpy.random.default_rng(1).standard_normal(1 << 24, dtype=numpy.float32)
    entered, turns = threading.Event(), 0

    def encode():
        entered.set()
        gradwire.encode("topk:0.01", gradient)
        done.set()

    done = threading.Event()
    thread = threading.Thread(target=encode)
    thread.start()
    entered.wait()
    while not done.is_set():
        turns += 1
    thread.join()
    # Were it held, this thread would have one turn: the switch comes when the encode is over.
    assert turns > 100


def test_no_leak(gradient):
    """1,000 steps take no memory."""
    compressor = gradwire.Compressor("qsgd:bits=4,bucket=64+ef", [[100, 100]], 7)
    device = gradwire.Device.cpu()

    def step():
        compressor.exchange(device, Alone(), gradient.copy())
        gradwire.decode(gradwire.encode("topk:0.01", Foreign(gradient)))

    for _ in range(100):
        step()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        step()
    gc.collect()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # One leaked gradient per step would be 39 MiB, one payload 5 MiB.
    assert grown < 2048, f"{grown} KiB"


def test_the_page(capsys):
    """What the package's own page shows is so."""
    import doctest

    assert doctest.testmod(gradwire).failed == 0, capsys.readouterr().out
