"""The hook of DistributedDataParallel, in processes over gloo."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import time

import numpy
import pytest

import gradwire

torch = pytest.importorskip("torch")
import torch.multiprocessing as processes

import cases
import workers
from test_numpy import Alone

RECIPES = [
    "qsgd:bits=4,bucket=64+ef",
    "qsgd:bits=8,bucket=64+ef+twophase:from=2",
    "uniform:bits=8,bucket=64",
    "natural:bits=8",
    "topk:0.25+ef",
    "topk:0.5+f16+ef+gtopk",
    "powersgd:rank=2",
    "onebit:bucket=64",
    "randomk:0.75+ef",
    "rotate+qsgd:bits=4",
    "float:bf16",
    "dgc:ratio=0.25,momentum=0.5",
]

# At the full depth alone.
MORE = [
    "none",
    "uniform:bits=4,bucket=64+ef",
    "sign:bucket=64",
    "ternary:bucket=64",
    "tree+ef",
    "float:e4m3,scaled",
    "float:e2m1,scaled+ef",
    "qsgd:bits=4,bucket=64+elias+diana",
    "qsgd:bits=2,bucket=32+base3",
    "topk:0.25+ef21",
    "topk:0.25+qsgd:bits=8+ef",
    "topk:above=0.001+ef",
    "topk:0.25,estimate=sidco+ef",
    "topk:0.25,persign+onebit:bucket=whole",
]


def run(work, ranks, folder, *arguments, join=True):
    """Runs a function of `workers` in so many processes; what each wrote."""
    folder.mkdir(exist_ok=True)
    (folder / "meet").unlink(missing_ok=True)
    processes.spawn(work, (ranks, str(folder), *arguments), ranks, join=join)
    results = [folder / f"result-{rank}" for rank in range(ranks)]
    return [torch.load(result) if result.exists() else None for result in results]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What both ranks give in each case of `cases`."""
    return run(cases.every, 2, tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("becomes", ["freed", "grown", "another"])
def test_a_group_that_takes_the_gradients_memory(becomes):
    """A step does not touch memory that torch has freed meanwhile."""
    elements = 1 << 20
    kept = []

    class Taking(Alone):
        def all_gather(self, mine):
            storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
            if becomes == "freed":
                storage.resize_(0)
            elif becomes == "grown":
                storage.resize_(1 << 28)
            else:
                tensor.set_(torch.zeros(4))
            # These lie where the gradient was.
            kept.extend(numpy.full(elements, 7, numpy.float32) for _ in range(3))
            return [mine]

    tensor = torch.randn(elements)
    compressor = gradwire.Compressor("qsgd:bits=4", [[elements]], small=0)
    if becomes == "grown":
        compressor.exchange(gradwire.Device.cpu(), Taking(), tensor)
    else:
        with pytest.raises(RuntimeError, match="memory changed during its exchange"):
            compressor.exchange(gradwire.Device.cpu(), Taking(), tensor)
    assert all((array == 7).all() for array in kept)


def test_tensors_enter_without_a_copy():
    """What numpy sees of a tensor's memory has the same payload, a bf16 tensor its own, and an output is written."""
    gradient = torch.randn(5000)
    payload = gradwire.encode("qsgd:bits=4", gradient)
    assert payload == gradwire.encode("qsgd:bits=4", gradient.numpy())
    half = gradient.to(torch.bfloat16)
    assert gradwire.encode("topk:k=5000", half).nbytes < 5000 * 2 + 100
    out = torch.zeros(5000)
    assert gradwire.decode(payload, out) is out
    assert (out.numpy() == gradwire.decode(payload)).all()
    residual = torch.zeros(5000)
    gradwire.encode("topk:0.01+ef", gradient, residual=residual)
    assert torch.count_nonzero(residual) == 4950


def test_writes_count_for_autograd():
    """What was written through DLPack has another version, and autograd refuses what it has saved of the values before."""
    device, compressor = gradwire.Device.cpu(), gradwire.Compressor("topk:0.1+ef", [[50, 20]])
    payload = gradwire.encode("topk:k=5", torch.ones(1000))
    writes = [
        lambda tensor: gradwire.decode(payload, tensor),
        lambda tensor: device.decode_add(payload, tensor),
        lambda tensor: device.decode_sum([payload], tensor),
        lambda tensor: gradwire.encode("topk:0.1+ef", torch.ones(1000), residual=tensor),
        lambda tensor: compressor.residual_into(tensor),
        lambda tensor: compressor.exchange(device, Alone(), tensor),
    ]
    for write in writes:
        weight, values = torch.ones(1000, requires_grad=True), torch.ones(1000)
        loss = (weight * values).sum()
        write(values)
        assert values._version == 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.inference_mode():
        values = torch.zeros(1000)
        gradwire.decode(payload, values)
    assert torch.count_nonzero(values) == 5


@pytest.mark.parametrize(
    "tensor, raised, text",
    [
        (torch.zeros(10)[::2], ValueError, "contiguous"),
        (torch.zeros(10, 10).T, ValueError, "contiguous"),
        (torch.zeros(10, dtype=torch.float64), TypeError, "float64"),
        (torch.zeros(10, dtype=torch.int32), TypeError, "int32"),
        (torch.zeros(10).to_sparse(), TypeError, "to_dense"),
        (torch.zeros(10, requires_grad=True), TypeError, "detach"),
    ],
)
def test_bad_tensors(tensor, raised, text):
    with pytest.raises(raised, match=text):
        gradwire.encode("qsgd:bits=4", tensor)


def test_a_tensor_without_memory():
    tensor = torch.zeros(10)
    (tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()).resize_(0)
    # Some torches refuse by themselves to hand it over.
    with pytest.raises((ValueError, TypeError), match="storage was freed|cannot be read"):
        gradwire.encode("qsgd:bits=4", tensor)


def test_operations_of_a_group(tmp_path):
    assert run(workers.groups, 3, tmp_path) == [True] * 3


@pytest.mark.parametrize("ranks", [2, 4])
def test_training(tmp_path, ranks):
    """Every recipe learns as plain DDP does, and all ranks have the same weights to the bit.

    Of 2,000 points; over five seeds the mean accuracy is within 3 points of plain DDP's, and over three at the default
    depth. There four ranks run five recipes with one seed, for the bits, and have to learn at all: a third is chance.
    """
    full = os.environ.get("GRADWIRE_DEPTH") == "full"
    seeds = [1, 2, 3, 4, 5] if full else [1, 2, 3] if ranks == 2 else [1]
    recipes = RECIPES + MORE if full else RECIPES if ranks == 2 else RECIPES[:1] + RECIPES[4:8]
    results = run(workers.learn, ranks, tmp_path, ["plain"] + recipes, seeds, 150)[0]
    mean = {recipe: numpy.mean([results[recipe, seed][0] for seed in seeds]) for recipe in ["plain"] + recipes}
    print(mean)
    assert all(same for (recipe, _), (_, same) in results.items()), results
    assert mean["plain"] > 0.9, mean
    for recipe in recipes:
        assert mean[recipe] > (mean["plain"] - 0.03 if len(seeds) > 1 else 0.7), (recipe, mean)


def test_a_checkpoint_goes_on_to_the_bit(tmp_path):
    """The buckets of a new DDP are not those that were saved, until it makes them anew. Nothing here is drawn at random."""
    assert run(workers.resume, 2, tmp_path, ["topk:0.05+momentum=0.5", "powersgd:rank=2", "onebit:bucket=64"]) == [[True] * 3] * 2


def test_a_checkpoint_of_other_ranks(tmp_path):
    """Two ranks' residuals become those of three, of which the sum is the same to the bit: one of each is not zero."""
    run(workers.resume, 2, tmp_path, ["topk:0.05+ef"])
    saved = [torch.load(tmp_path / f"saved-{rank}")["state"] for rank in range(2)]
    results = run(workers.reshard, 3, tmp_path / "three", "topk:0.05+ef", saved)
    assert all("hand over a list" in text for text, _ in results)
    kept = [found for _, found in results]
    assert sum(values.abs().sum() for values in kept[0].values()) > 0
    assert all(values.abs().sum() == 0 for values in kept[2].values())
    assert set(kept[0]) == set(dict(workers.network(1).named_parameters()))


def test_a_rank_that_dies_does_not_hang_the_others(tmp_path):
    """gloo notices at once, or at the deadline of 5 s; the state then refuses to go on."""
    began = time.monotonic()
    results = run(workers.die, 3, tmp_path, "qsgd:bits=4,bucket=64+ef")
    assert time.monotonic() - began < 60
    assert results[2] is None
    for first, second in results[:2]:
        assert first.startswith("GroupError: "), first
        assert second.startswith("GroupError: ") and "Make a new group" in second, second


def test_the_hook_works_where_the_bucket_lies(tmp_path):
    for seen in run(workers.addresses, 2, tmp_path):
        assert len(seen["bucket"]) >= 3 and seen["bucket"] == seen["compressor"]


def test_buckets(tmp_path):
    for errors, texts in run(workers.buckets, 2, tmp_path):
        assert all(0 < error < 0.05 for error in errors), errors
        assert "shape" in texts[0] or "elements" in texts[0], texts
        assert "closed" in texts[1]
        assert ["model=ddp" in text for text in texts[2:]] == [True, True], texts


def test_a_compressed_reduce_scatter(tmp_path):
    """Whole numbers that bf16 holds come exactly; with feedback, what was given is what came and what is kept."""
    for found, texts in run(workers.scatter, 3, tmp_path):
        assert found["float:bf16,nearest+noef"] == 0 and found["topk:0.5+ef"] == 0
        # 30 steps of sums up to 24, each rounded to f32 where a level is no whole number.
        assert found["qsgd:bits=8,bucket=64+ef"] < 1e-2
        assert "summed or averaged" in texts[0] and "gradwire.Compressor" in texts[1] and "fully_shard" in texts[2]


@pytest.mark.parametrize("recipe, ranks, replicas", [("qsgd:bits=8,bucket=64+ef", 2, False), ("topk:0.5+ef", 4, True)])
def test_fsdp(tmp_path, recipe, ranks, replicas):
    if int(torch.__version__.partition(".")[0]) < 2:
        pytest.skip("torch 1 has no FSDP2")
    from torch.distributed import fsdp

    if not hasattr(getattr(fsdp, "FSDPModule", None), "set_custom_reduce_scatter"):
        pytest.skip("this torch has no set_custom_reduce_scatter")
    for plain, compressed in run(workers.fsdp, ranks, tmp_path, recipe, replicas):
        assert compressed[1] and plain[0] > 0.9 and compressed[0] > (0.8 if replicas else plain[0] - 0.03)


def test_a_loop_without_ddp(tmp_path):
    assert run(workers.loop, 2, tmp_path, ["topk:0.1+ef", "qsgd:bits=4,bucket=64+ef"]) == [[(True, True)] * 2] * 2


def printed_by(example, *arguments):
    """What the first of two ranks of an example prints."""
    example = pathlib.Path(__file__).parents[1] / "examples" / example
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(example), *arguments]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        [rank.kill() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], texts
    return texts[0]


@pytest.mark.parametrize("recipe, least", [("none", 1), ("qsgd:bits=4,bucket=64+ef", 6), ("powersgd:rank=2", 8)])
def test_the_example(recipe, least):
    """It learns, and sends as many times less as it says; its first step goes uncompressed."""
    found = re.search(r": ([0-9.]+) % right, ([0-9.]+) MB for ([0-9.]+) MB", printed_by("train.py", "--recipe", recipe))
    assert found
    right, sent, plain = map(float, found.groups())
    assert right > 85 and plain / sent >= 0.99 * least, found.group()


def test_the_example_of_what_accuracy_costs():
    """A row for each recipe: it has learned more than which characters there are, and says what a step sends."""
    rows = printed_by("characters.py", "none", "topk:0.01+ef", "--steps", "40").splitlines()[2:]
    cells = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == ["none", "topk:0.01+ef"]
    for recipe, loss, beside, sent, times in cells:
        assert 1 < float(loss) < 3.5 and float(beside) == pytest.approx(float(loss) - float(cells[0][1]), abs=0.002)
        assert float(times) == pytest.approx(float(cells[0][3]) / float(sent), rel=0.05)
    assert float(cells[1][4]) > 20


def test_the_bench(tmp_path):
    """Rows for torch's hooks and for ours, whose bytes are the payload's; and a chart where matplotlib is there."""
    from gradwire import bench

    rows = bench.measure(2, side=128, steps=2, recipes=["onebit:bucket=64", "powersgd:rank=4"])
    found = {row["hook"]: row for row in rows}
    assert {"torch: no hook", "torch: fp16_compress_hook", "torch: powerSGD_hook, rank 4"} < set(found)
    assert found["torch: no hook"]["error"] < 1e-6
    # A bit per element and two means per bucket, and what frames a message.
    payload = gradwire.encode("onebit:bucket=64+noef", numpy.zeros(128 * 128, numpy.float32)).nbytes
    assert payload <= 1e6 * found["onebit:bucket=64"]["megabytes"] < payload + 100
    assert all(row["milliseconds"] > 0 for row in rows if "failed" not in row)
    pytest.importorskip("matplotlib")
    bench.draw(rows, tmp_path / "chart.svg")
    assert "onebit" in (tmp_path / "chart.svg").read_text()


def test_the_hook_does_not_leak(tmp_path):
    """A bucket of 32 kB that stayed would be 31 MiB in 1,000 steps, a payload 3 MiB."""
    for grown, texts in run(workers.leak, 2, tmp_path):
        assert grown < 2048, f"{grown} KiB"
        assert "warm_start" in texts[0]


def test_a_step_is_taken_back(found):
    for of in found:
        for recipe, (same, steps, sent_more) in of["undo"].items():
            assert same and steps == 5 and sent_more, recipe
        texts, counted = of["undo_refused"]
        assert counted == [0, 2, 1]
        assert all("StateError: there is no step to take back" in text for text in texts[:3]) and "closed" in texts[3], texts
        same, texts, steps = of["undo_of_loops"]
        assert same and steps == 3 and all("there is no step to take back" in text for text in texts), texts


def test_the_loss_scale_may_change(found):
    """Powers of two: the means without their scale have the bits of a scale of 1, and top-k loses nothing, whose sums are
    exact. Without `scaler=` it does, so that this can fail."""
    for of in found:
        same, lost = of["scales"]
        for (recipe, name, told), equal in same.items():
            assert equal == (told or name == "one"), (recipe, name, told)
        for name in cases.SCALES:
            assert lost["topk:0.05+ef", name, True] == 0
        assert all(lost["topk:0.05+ef", name, False] > 0.2 for name in ["doubled", "dropped"]), lost
        same, texts = of["scales_of_loops"]
        assert same == [True, True]
        assert "hand over a GradScaler" in texts[0] and texts[4] == "1"
        assert all(f"loss scale is {scale}" in text for scale, text in zip(["0.0", "inf", "nan"], texts[1:])), texts


def test_parameters_of_other_strides(found):
    """A gradient of rank 1 comes but for rounding, wherever its elements lie: sums of 144 products, each to 2^-24."""
    for of in found:
        for what, error in of["strides"].items():
            assert error < 4 * 144 * 2**-24, (what, error)


def test_parameters_that_no_rank_uses(found):
    """Nothing is lost where DDP drops a part of a bucket, but for the rounding of 12 steps; without `unused` it is."""
    for of in found:
        for (recipe, how), (lost, without, units) in of["unused"].items():
            # DDP has dropped something in the steps that left out a branch, and the one that is never used each time.
            assert (without > 12) == (how != "ranks apart"), (recipe, how, without)
            if how == "not told":
                assert lost > 0.02, (recipe, how, lost)
                continue
            # Twelve steps, each with less than eight roundings of no more than what was given.
            assert lost < 12 * 8 * 2**-24, (recipe, how, lost)
        assert all(of["unused_in_turn"]), of["unused_in_turn"]


def test_ranks_with_other_settings(found):
    """Each setting is named at once, on every rank."""
    for rank, of in enumerate(found):
        texts, seconds = of["disagreement"]
        assert seconds < 20
        for what, text in texts.items():
            assert re.match(f"SettingError: {what} is .* on rank {1 - rank} and .* on rank {rank}: make", text), text


def test_one_state_for_two_models(found):
    for of in found:
        texts = of["second_models"]
        assert texts[1:3] == texts[4:] == ["1", "2"]
        assert "is not in the model" in texts[0] and "was not in the first step" in texts[3], texts


def test_copies_of_a_state(found):
    for of in found:
        same, texts = of["copies"]
        assert all(same), same
        assert "set state.scaler" in texts[0] and "residuals belong to a rank" in texts[1], texts


def test_keys(found):
    for rank, of in enumerate(found):
        same, (copied, other, missing, no_key) = of["keys"]
        assert all(same), same
        assert copied.startswith("StateError: ") and "set state.key" in copied
        assert other.startswith("GroupError: ") and f"message of rank {1 - rank} that does not bear" in other
        assert ["GroupError: ", "SettingError: rank 0 sent no settings"][rank] in missing, missing
        assert no_key.startswith("SettingError: key= is a str"), no_key


def test_backward_raises_what_failed(found):
    for rank, of in enumerate(found):
        first, second, third, bare = of["errors_of_backward"]
        own = ["ExchangeError: rank 1", "NotFiniteError: "][rank]
        assert first.startswith(own) and bare.startswith(own), (first, bare)
        assert second.startswith("GroupError: an exchange failed before") and "Make a new group" in second, second


def test_types_of_parameters(found):
    for of in found:
        found = of["types"]
        assert ["float64" in "".join(said) for said in found["float64"]] == [True, False, False], found["float64"]
        assert "the gradient of" in found["float64"][0][0] and "3.4e38" in found["float64"][0][0]
        assert not found["above"] and found["none"] == ([], True)
        for warm_up in [0, 1]:
            assert "SettingError: the parameter p0 is complex" in found["complex", warm_up]
        assert "SettingError: the parameter turned is complex" in found["complex", "loop"]


def test_recipes_that_lose_what_they_leave_out(found):
    for of in found:
        types = of["types"]
        for what in types:
            recipe = what if isinstance(what, str) else what[0]
            if recipe in ["topk:0.1", "dct+topk:0.1"]:
                assert len(types[what]) == 1 and repr(recipe) in types[what][0] and "add +ef" in types[what][0], what
            elif recipe not in ["float64", "above", "none", "complex"]:
                assert types[what] == [], what


def test_a_checkpoint_of_coefficients(found):
    assert all(all(of["resumed_coefficients"]) for of in found), [of["resumed_coefficients"] for of in found]


def test_mixed_precision(tmp_path):
    """A scaler begins with steps that overflow. Each method skips as many as plain DDP, but for one that its own error
    makes, and learns: the loss falls to less than half, plain DDP's to a seventh."""
    for found in run(cases.overflows, 2, tmp_path):
        plain, first, last, _ = found["plain", False]
        assert plain >= 5 and last < first / 5
        assert {name for name, _ in found} == {"plain", *dict(gradwire.methods())}
        wrong = {
            what: (skipped, last / first)
            for what, (skipped, first, last, same) in found.items()
            if skipped > plain + 1 or last > first / 2 or not same
        }
        assert wrong == {}
