"""What the hook has to do in the course of a training: each function is a case, and two processes run them all."""

import copy
import io
import pickle
import time
import warnings

import gradwire
import gradwire.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import workers

SHAPES = {"first": (48, 32), "bias": (32,), "second": (40, 24), "last": (16, 8, 3, 3)}
RECIPES = ["topk:0.05+ef", "topk:0.05+momentum=0.9", "qsgd:bits=4,bucket=64+ef", "onebit", "powersgd:rank=2", "topk:0.05+ef21"]


CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def every(rank, ranks, folder):
    """Runs all cases; what each gave, by its name."""
    workers.enter(rank, ranks, folder)
    workers.leave({name: run(rank, ranks) for name, run in CASES.items()}, folder, rank)


class Given(torch.nn.Module):
    """Parameters whose gradients are those that are handed over."""

    def __init__(self, make=torch.zeros, shapes=SHAPES):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(make(shape)))

    def forward(self, gradients):
        return sum((getattr(self, name) * gradient).sum() for name, gradient in gradients.items())


def draw(rank, step, shapes=SHAPES):
    """The gradients of a rank in a step."""
    draws = torch.Generator().manual_seed(100 * step + rank)
    return {name: torch.randn(shape, generator=draws) for name, shape in shapes.items()}


def backward(model, gradients, scale=1.0):
    """One backward; the gradients that it leaves."""
    model.zero_grad(set_to_none=True)
    (model(gradients) * scale).backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.module.named_parameters()}


def hooked(recipe, module=None, ddp=None, **settings):
    """A model in small buckets with the hook, and the hook's state."""
    model = DistributedDataParallel(Given() if module is None else module, bucket_cap_mb=0.008, **(ddp or {}))
    state = gradwire.torch.State(recipe, **{"model": model, "small": 0, "warm_up": 0, **settings})
    model.register_comm_hook(state, gradwire.torch.hook)
    return model, state


def text_of(raises, kind=gradwire.Error):
    """The text of the error that a call has to raise."""
    try:
        raises()
    except kind as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def bits(gradients):
    return {name: gradient.view(torch.int32) for name, gradient in gradients.items()}


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(bits(one).values(), bits(other).values()))


@case
def undo(rank, ranks):
    """A step that is taken back leaves no trace, to the bit, and the next step of the same number is made anew."""
    found = {}
    for recipe in RECIPES + ["none"]:
        (model, state), (plain, plain_state) = hooked(recipe, warm_up=1), hooked(recipe, warm_up=1)
        same = []
        for step in range(5):
            same.append(equal(backward(model, draw(rank, step)), backward(plain, draw(rank, step))))
            if step > 0:
                backward(model, draw(rank, 50 + step))
                state.undo_step()
        same.append(state.state_dict() == plain_state.state_dict())
        found[recipe] = (all(same), state.steps, state.sent_bytes > plain_state.sent_bytes)
        for one in [state, plain_state]:
            one.close()
    return found


@case
def undo_refused(rank, ranks):
    """What undo_step says where there is nothing to take back, and that a step without compression is taken back too."""
    model, state = hooked("topk:0.05+ef", warm_up=1)
    texts = [text_of(state.undo_step)]
    backward(model, draw(rank, 0))
    state.undo_step()
    counted = [state.steps]
    for step in range(2):
        backward(model, draw(rank, step))
    counted.append(state.steps)
    state.undo_step()
    texts.append(text_of(state.undo_step))
    counted.append(state.steps)
    backward(model, draw(rank, 1))
    state.load_state_dict(state.state_dict())
    texts.append(text_of(state.undo_step))
    state.close()
    texts.append(text_of(state.undo_step))
    return texts, counted


@case
def undo_of_loops(rank, ranks):
    """The same without DDP, and of FSDP's reduce-scatter and its replicas."""
    found = []
    for again in [False, True]:
        model = Given()
        gradients = gradwire.torch.Gradients(model, "topk:0.05+ef", small=0)
        scatter = gradwire.torch.ReduceScatter("topk:0.05+ef")
        scatter.replicas = gradwire.torch.AllReduce("topk:0.1+ef", None)
        texts = [text_of(gradients.undo_step), text_of(scatter.undo_step)]
        kept = []

        def step(number):
            for name, gradient in draw(rank, number).items():
                getattr(model, name).grad = gradient
            gradients.average()
            output, given = torch.empty(768), draw(rank, number)["first"].reshape(-1)
            scatter(output, given, dist.group.WORLD, dist.ReduceOp.SUM)
            scatter.replicas(output)
            return [parameter.grad.clone() for parameter in model.parameters()] + [output]

        for number in range(4):
            kept += step(number)
            if again:
                step(50 + number)
                gradients.undo_step()
                scatter.undo_step()
        texts += [text_of(lambda: [gradients.undo_step(), gradients.undo_step()])]
        texts += [text_of(lambda: [scatter.undo_step(), scatter.undo_step()])]
        found.append((kept, texts, scatter.steps))
    same = all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0]))
    return same, found[1][1], found[0][2]


def residuals(state):
    """What is not sent, of each parameter."""
    return {name: found.reshape(-1) for name, found in workers.residuals(state).items()}


SCALES = {
    "one": lambda step: 1.0,
    "doubled": lambda step: 2.0**step,
    "dropped": lambda step: 65536.0 if step < 4 else 1.0,
}


@case
def scales(rank, ranks):
    """Means without their scale, and what is lost, for a scale of 1 and for two that change; and without `scaler=`."""
    found = {}
    for recipe in RECIPES:
        for name, scale in SCALES.items():
            for told in [True, False] if recipe == RECIPES[0] else [True]:
                now = [0]
                model, state = hooked(recipe, scaler=(lambda: scale(now[0])) if told else None)
                given, applied = [{name: torch.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2)]
                means = []
                for step in range(8):
                    now[0] = step
                    # Whole numbers, whose sums are exact.
                    gradients = {name: (4 * one).round() for name, one in draw(rank, step).items()}
                    scaled = backward(model, gradients, scale(step))
                    means.append({name: mean / scale(step) for name, mean in scaled.items()})
                    for of in SHAPES:
                        given[of] += gradients[of]
                        applied[of] += means[-1][of]
                # What is not applied so far is in the residuals as they are in the last step's units.
                lost = 0.0
                for of, kept in residuals(state).items():
                    missing = (given[of].reshape(-1) - (kept if told else kept / scale(step))) / ranks
                    dist.all_reduce(missing)
                    lost = max(lost, float((missing - applied[of].reshape(-1)).norm() / missing.norm()))
                found[recipe, name, told] = (means, lost)
                state.close()
    same = {key: all(map(equal, means, found[key[0], "one", True][0])) for key, (means, _) in found.items()}
    return same, {key: lost for key, (_, lost) in found.items()}


@case
def scales_of_loops(rank, ranks):
    """The same of loops without DDP and of FSDP's exchanges, and of half precision; and scales that are none."""
    means = []
    for name, scale in SCALES.items():
        now = [0]
        scaler = lambda: scale(now[0])
        model = Given()
        gradients = gradwire.torch.Gradients(model, "topk:0.05+ef", small=0, scaler=scaler)
        scatter = gradwire.torch.ReduceScatter("topk:0.05+ef", scaler=scaler)
        replicas = gradwire.torch.AllReduce("topk:0.1+ef", None, scaler=scaler)
        state = gradwire.torch.State("topk:0.05+ef", small=0, warm_up=0, scaler=scaler)
        parameter = torch.nn.Parameter(torch.zeros(48, 32))
        means.append([])
        for step in range(8):
            now[0] = step
            for of, gradient in draw(rank, step).items():
                getattr(model, of).grad = gradient * scale(step)
            gradients.average()
            output, given = torch.empty(768), draw(rank, step)["first"].reshape(-1) * scale(step)
            scatter(output, given, dist.group.WORLD, dist.ReduceOp.AVG)
            replicas(output)
            bucket = workers.Bucket([parameter], torch.float16, torch.Generator().manual_seed(step))
            # Whole multiples of 2^-11, which half precision holds exactly at either end.
            bucket._buffer = ((8 * bucket.buffer().float()).round() * 2**-11 * scale(step)).half()
            half = gradwire.torch.hook(state, bucket).wait().float()
            means[-1] += [one / scale(step) for one in [*(p.grad for p in model.parameters()), output, half]]
        state.close()
    same = [all(map(torch.equal, means[0], other)) for other in means[1:]]
    now = [1.0]
    state = gradwire.torch.State("topk:0.05+ef", small=0, warm_up=0, scaler=lambda: now[0])
    texts = [text_of(lambda: gradwire.torch.State("topk:0.05+ef", scaler=65536.0))]
    bucket = workers.Bucket([parameter], torch.float32, torch.Generator().manual_seed(rank))
    for wrong in [0.0, float("inf"), float("nan")]:
        now[0] = wrong
        texts.append(text_of(lambda: gradwire.torch.hook(state, bucket)))
    now[0] = 2.0
    gradwire.torch.hook(state, bucket).wait()
    texts.append(str(state.steps))
    state.close()
    return same, texts


def strided(kind):
    """A parameter of 96 x 48, or of 32 x 16 x 3 x 3, that lies in memory as its kind says."""
    if kind == "plain":
        return torch.zeros(96, 48)
    if kind == "transposed":
        return torch.zeros(48, 96).t()
    if kind == "gaps":
        return torch.zeros(96, 96)[:, ::2]
    if kind == "channels_last":
        return torch.zeros(32, 16, 3, 3).to(memory_format=torch.channels_last)
    if kind == "one channel":
        return torch.zeros(1, 16, 3, 32).permute(3, 0, 2, 1)
    assert kind == "permuted"
    return torch.zeros(3, 32, 3, 16).permute(1, 3, 0, 2)


def low_rank(shape, rank):
    """A gradient that is a matrix of rank 1, of the first side that is not 1 and the rest; a factor apart on each rank."""
    first = next(side for side in shape if side != 1)
    rest = torch.Size(shape).numel() // first
    return (torch.outer(torch.arange(first).sin(), torch.arange(rest).cos()) * (rank + 1)).reshape(shape)


KINDS = ["plain", "transposed", "gaps", "channels_last", "one channel", "permuted"]


@case
def strides(rank, ranks):
    """How far PowerSGD of rank 1 is from a gradient of rank 1, and DeMo's squares from one of few coefficients."""
    found = {}
    for kind in KINDS:
        parameter = strided(kind)
        shape = {"weight": parameter.shape}
        # Of rank 1 as a matrix of the first side and the rest, as it lies in memory or as its shape says.
        memory = {"one channel": (1, 16, 3, 32), "permuted": (3, 32, 3, 16)}.get(kind, parameter.shape)
        turned = {"one channel": (3, 0, 2, 1), "permuted": (1, 3, 0, 2)}.get(kind, range(len(memory)))
        gradient = low_rank(memory, rank).permute(*turned)
        mean = gradient * (ranks + 1) / 2 / (rank + 1)
        for view in [False, True]:
            model = Given(lambda _: strided(kind), shape)
            model, state = hooked("powersgd:rank=1+noef", model, {"gradient_as_bucket_view": view})
            for _ in range(2):
                found[kind, view] = float((backward(model, {"weight": gradient})["weight"] - mean).norm() / mean.norm())
            assert model.module.weight.grad.stride() == model.module.weight.stride() or kind == "gaps"
            state.close()
        if kind in ["one channel", "permuted"]:
            # A loop of one's own takes the sides as the shape says.
            continue
        model = Given(lambda _: strided(kind), shape)
        gradients = gradwire.torch.Gradients(model, "powersgd:rank=1+noef", small=0)
        for _ in range(2):
            model.weight.grad = gradient.clone()
            gradients.average()
        found[kind, "loop"] = float((model.weight.grad - mean).norm() / mean.norm())
    # A square of rows and columns of which one coefficient is not zero.
    for kind in ["plain", "transposed"]:
        side = 64
        model = Given(lambda shape: torch.zeros(shape) if kind == "plain" else torch.zeros(shape[::-1]).t(), {"weight": (2 * side, side)})
        model, state = hooked("dct:tiles+topk:k=2,block=4096+ef", model)
        turns = torch.pi * (torch.arange(side) + 0.5) / side
        wave = torch.outer((3 * turns).cos(), (7 * turns).cos()).repeat(2, 1)
        found["tiles", kind] = float((backward(model, {"weight": wave})["weight"] - wave).norm() / wave.norm())
        state.close()
    return found


BRANCHES = {"both": (32,), "one": (48, 32), "other": (40, 24), "another": (16, 24), "never": (30, 30)}


def branch(rank, ranks, step, how):
    """The parameters that a rank uses in a step."""
    if step < 2:
        return ["both", "one", "other", "another"]
    if how == "ranks apart":
        return ["both", ["one", "other"][(step + rank) % 2], "another"]
    return ["both", *[["one"], ["other", "another"], ["one", "another"]][step % 3]]


@case
def unused(rank, ranks):
    """What of the gradient is neither applied nor in the residuals, of steps that leave out parameters on all ranks."""
    found = {}
    for recipe in ["topk:0.05+ef", "qsgd:bits=4,bucket=64+ef", "powersgd:rank=2", "onebit"]:
        for how in ["all ranks", "ranks apart", "not told"]:
            settings = {"unused": False} if how == "not told" else {}
            model, state = hooked(recipe, Given(shapes=BRANCHES), {"find_unused_parameters": True}, **settings)
            assert state.unused == (how != "not told")
            given, applied = [{name: torch.zeros(shape, dtype=torch.float64) for name, shape in BRANCHES.items()} for _ in range(2)]
            without = 0
            for step in range(12):
                now = {name: draw(rank, step, BRANCHES)[name] for name in branch(rank, ranks, step, how)}
                for name, mean in backward(model, now).items():
                    given[name] += now.get(name, torch.zeros(())) / ranks
                    without += mean is None
                    applied[name] += 0 if mean is None else mean
            lost, most = 0.0, 0.0
            for name, kept in residuals(state).items():
                missing = given[name].reshape(-1) - kept / ranks
                dist.all_reduce(missing)
                lost += float((missing - applied[name].reshape(-1)).norm()) ** 2
                most += float(missing.norm()) ** 2
            units = sorted(sorted(names) for names, _ in state._buckets)
            found[recipe, how] = ((lost / most) ** 0.5, without, units)
            state.close()
    return found


@case
def unused_in_turn(rank, ranks):
    """A checkpoint in the course of it, steps that are taken back, and a momentum that stays where nothing is used."""
    return [same for recipe in ["topk:0.05+momentum=0.9", "dct+topk:0.05+ef"] for same in in_turn(rank, recipe)]


def in_turn(rank, recipe):
    shapes = {"one": (48, 32), "other": (40, 24)}
    build = lambda: hooked(recipe, Given(shapes=shapes), {"find_unused_parameters": True}, unused=True)
    (model, state), (plain, plain_state) = build(), build()
    only = lambda of, step, name: backward(of, {name: draw(rank, step, shapes)[name]})[name]
    order = ["one", "other", "one", "one", "other", "one"]
    same = []
    for step, name in enumerate(order):
        same.append(torch.equal(only(model, step, name), only(plain, step, name)))
        only(model, 50 + step, order[-1 - step])
        state.undo_step()
    saved = state.state_dict()
    same.append(saved == plain_state.state_dict())
    again, again_state = build()
    again_state.load_state_dict(saved)
    for step, name in enumerate(order, 10):
        same.append(torch.equal(only(again, step, name), only(plain, step, name)))
    # Each alone, in models of its own, has the same: what one step does not use has no part in it.
    for name in shapes:
        alone, alone_state = hooked(recipe, Given(shapes={name: shapes[name]}))
        fresh, fresh_state = build()
        for step, which in enumerate(order):
            mean = only(fresh, step, which)
            if which == name:
                same.append(torch.equal(mean, backward(alone, {name: draw(rank, step, shapes)[name]})[name]))
        alone_state.close()
        fresh_state.close()
    for one in [state, plain_state, again_state]:
        one.close()
    return same


@case
def disagreement(rank, ranks):
    """What ranks with other settings are told, and how long it takes."""
    began, texts = time.monotonic(), {}
    for what, values in {
        "recipe": ("onebit", "topk:0.1+ef"),
        "rules": ((), [("a*", "onebit")]),
        "small": (None, 0),
        "seed": (1, 2),
        "warm_up": (1, 2),
        "unused": (False, True),
        "scaler": (None, lambda: 1.0),
    }.items():
        settings = {"recipe": "onebit", what: values[rank]}
        texts[what] = text_of(lambda: gradwire.torch.State(**settings))
    return texts, time.monotonic() - began


@case
def second_models(rank, ranks):
    """One state for two models, with their names and without."""
    texts = []
    for settings in [{}, {"model": None}]:
        model, state = hooked("topk:0.05+ef", **settings)
        other = DistributedDataParallel(Given())
        other.register_comm_hook(state, gradwire.torch.hook)
        backward(model, draw(rank, 0))
        texts.append(text_of(lambda: backward(other, draw(rank, 0))))
        texts.append(str(state.steps))
        backward(model, draw(rank, 1))
        texts.append(str(state.steps))
        state.close()
    return texts


@case
def copies(rank, ranks):
    """Copies of a model and its state, by `copy`, `pickle` and torch, go on with the bits of their original."""
    found = []
    by_file = lambda pair: torch.load(io.BytesIO(file_of(pair)), weights_only=False)

    def file_of(pair):
        file = io.BytesIO()
        torch.save(pair, file)
        return file.getvalue()

    for recipe in ["topk:0.05+momentum=0.9", "powersgd:rank=2", "qsgd:bits=4,bucket=64+ef"]:
        model, state = hooked(recipe)
        for step in range(3):
            backward(model, draw(rank, step))
        ddp = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), by_file(model)]
        ddp.append(torch.optim.swa_utils.AveragedModel(model))
        assert all(sum(p.numel() for p in one.parameters()) == sum(p.numel() for p in model.parameters()) for one in ddp)
        made = [change((model.module, state)) for change in [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p)), by_file]]
        again = []
        for module, copied in made:
            assert copied.steps == 3 and copied.sent_bytes == state.sent_bytes
            copied_model = DistributedDataParallel(module, bucket_cap_mb=0.008)
            copied_model.register_comm_hook(copied, gradwire.torch.hook)
            again.append((copied_model, copied))
        if "qsgd" in recipe:
            # Draws belong to buckets, and a new DDP has others in its first step.
            means = [backward(one, draw(rank, 3)) for one, _ in [(model, state), *again]]
            same = [len(mean) == len(SHAPES) for mean in means]
        else:
            same = []
            for step in range(3, 5):
                means = [backward(one, draw(rank, step)) for one, _ in [(model, state), *again]]
                same += [equal(means[0], mean) for mean in means[1:]]
        # The original goes on, and copies do not share what it keeps.
        same.append(all(copied.steps == state.steps for _, copied in again))
        found.append(all(same))
        for _, one in [(model, state), *again]:
            one.close()
    # A scaler is not copied, and its absence is no silence. A copy of a copy that was never used.
    model, state = hooked("topk:0.05+ef", scaler=lambda: 2.0)
    backward(model, draw(rank, 0), 2.0)
    module, copied = copy.deepcopy(copy.deepcopy((model.module, state)))
    copied_model = DistributedDataParallel(module, bucket_cap_mb=0.008)
    copied_model.register_comm_hook(copied, gradwire.torch.hook)
    texts = [text_of(lambda: copied._take(None))]
    copied.scaler = lambda: 2.0
    found.append(equal(backward(copied_model, draw(rank, 1), 2.0), backward(model, draw(rank, 1), 2.0)))
    # On one rank alone, which must not wait for the others.
    if rank == 0:
        pickle.loads(pickle.dumps(state)).close()
        copy.deepcopy(state)
    moved = copy.deepcopy(state)
    moved._place, moved.scaler = (ranks, ranks + 1), copied.scaler
    texts.append(text_of(lambda: moved._take(None)))
    for one in [state, copied]:
        one.close()
    return found, texts


@case
def keys(rank, ranks):
    """With a key the bits are those without; a copy asks for its key; and another key, or none on a rank, is an error."""
    key, same = gradwire.Key(b"k" * 32), []
    for recipe in ["topk:0.05+ef", "powersgd:rank=2", "qsgd:bits=4,bucket=64+ef+twophase"]:
        (model, state), (plain, plain_state) = hooked(recipe, key=key), hooked(recipe)
        same += [equal(backward(model, draw(rank, step)), backward(plain, draw(rank, step))) for step in range(3)]
        copied = copy.deepcopy(state)
        texts = [text_of(lambda: copied._take(None))]
        for one in [state, plain_state]:
            one.close()
    module = torch.nn.Linear(2, 3)
    loops = [gradwire.torch.Gradients(module, "topk:0.5+ef", **settings) for settings in [{"key": key}, {}]]
    for loop in loops:
        module.zero_grad()
        module(torch.full((1, 2), rank + 1.0)).sum().backward()
        loop.average()
        same.append(module.weight.grad.clone())
    same[-2:] = [torch.equal(*same[-2:])]
    others = [gradwire.Key(bytes([rank]) * 32), key if rank == 0 else None]
    texts += [text_of(lambda: gradwire.torch.State("topk:0.1+ef", key=other)) for other in others]
    texts.append(text_of(lambda: gradwire.torch.State("topk:0.1+ef", key="secret")))
    return same, texts


@case
def errors_of_backward(rank, ranks):
    """What backward raises where an exchange fails, for one rank's NaN, and in the steps after it; and a bare future."""
    model, state = hooked("topk:0.05+ef+finite")
    gradients = draw(rank, 0)
    backward(model, gradients)
    if rank == 1:
        gradients["second"][3, 3] = float("nan")
    texts = [text_of(lambda: backward(model, gradients), Exception) for _ in range(3)]
    state.close()
    parameter = torch.nn.Parameter(torch.zeros(48, 32))
    state = gradwire.torch.State("topk:0.05+ef+finite", small=0, warm_up=0)
    bucket = workers.Bucket([parameter], torch.float32, torch.Generator())
    if rank == 1:
        bucket.buffer()[0] = float("nan")
    texts.append(text_of(gradwire.torch.hook(state, bucket).wait, Exception))
    state.close()
    return texts


@case
def types(rank, ranks):
    """What is said of float64 and complex parameters, and when; and of recipes that lose what they leave out."""
    found = {}

    def said(call):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        # Torch may have something to say too.
        texts = [str(warning.message) for warning in caught]
        return [text for text in texts if "the gradient of" in text or "loses the entries" in text]

    model, state = hooked("qsgd:bits=8,bucket=64+ef", Given(lambda shape: torch.zeros(shape, dtype=torch.float64)), warm_up=1)
    large = {name: gradient.double() * 1e39 for name, gradient in draw(rank, 0).items()}
    found["float64"] = [said(lambda: backward(model, draw(rank, step))) for step in range(3)]
    found["above"] = bool(backward(model, large)["first"].isfinite().all())
    state.close()
    model, state = hooked("none", Given(lambda shape: torch.zeros(shape, dtype=torch.float64)))
    found["none"] = said(lambda: backward(model, large)), bool(backward(model, large)["first"].isfinite().all())
    state.close()
    turned = torch.nn.Parameter(torch.zeros(8, 8, dtype=torch.complex64))
    for warm_up in [0, 1]:
        state = gradwire.torch.State("topk:0.1+ef", small=0, warm_up=warm_up)
        found["complex", warm_up] = text_of(
            lambda: gradwire.torch.hook(state, workers.Bucket([turned], torch.complex64, torch.Generator()))
        )
        state.close()
    module = torch.nn.Module()
    module.turned = turned
    found["complex", "loop"] = text_of(lambda: gradwire.torch.Gradients(module, "topk:0.1+ef"))
    for recipe in ["topk:0.1", "topk:0.1+noef", "topk:0.1+ef", "randomk:0.3", "qsgd:bits=4", "grace:signsgd", "dct+topk:0.1"]:
        found[recipe] = said(lambda: gradwire.torch.State(recipe).close())
        found[recipe, "loop"] = said(lambda: gradwire.torch.Gradients(Given(), recipe))
        if recipe.startswith(("topk", "qsgd")):
            found[recipe, "shard"] = said(lambda: gradwire.torch.ReduceScatter(recipe))
        found[recipe, "rule"] = said(lambda: gradwire.torch.State("onebit", rules=[("first", recipe)]).close())
    return found


@case
def resumed_coefficients(rank, ranks):
    """A checkpoint of `dct` under a new DDP: its first step goes uncompressed, and the residual is then what it was."""
    recipe = "dct+topk:0.05+ef"
    model, state = hooked(recipe, warm_up=1)
    for step in range(4):
        backward(model, draw(rank, step))
    saved = state.state_dict()
    again, again_state = hooked(recipe, warm_up=1)
    again_state.load_state_dict(saved)
    exact = backward(again, draw(rank, 4))
    mean = {name: torch.stack([draw(r, 4)[name] for r in range(ranks)]).mean(0) for name in SHAPES}
    same = [all(torch.allclose(exact[name], mean[name], rtol=0, atol=2**-22) for name in SHAPES)]
    same.append([bucket["state"] for bucket in again_state.state_dict()["buckets"]] == [bucket["state"] for bucket in saved["buckets"]])
    # With the step that went uncompressed left out, they go on alike: nothing is drawn here.
    same += [equal(backward(again, draw(rank, step)), backward(model, draw(rank, step))) for step in range(5, 8)]
    same.append(again_state.steps == state.steps + 1)
    for one in [state, again_state]:
        one.close()
    return same


class Overflow(torch.autograd.Function):
    """What float16 does on the way back: values above 65504 become infinite."""

    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient.half().float()


class Scaler:
    """A ``GradScaler`` for the CPU, for torches that have none: by torch's rules and with its defaults."""

    def __init__(self):
        self._scale, self._grown, self._skip = 65536.0, 0, False

    def get_scale(self):
        return self._scale

    def scale(self, loss):
        return loss * self._scale

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        for gradient in gradients:
            gradient.mul_(1 / self._scale)
        self._skip = not all(bool(gradient.isfinite().all()) for gradient in gradients)
        if not self._skip:
            optimizer.step()

    def update(self):
        self._grown = 0 if self._skip else self._grown + 1
        if self._skip:
            self._scale *= 0.5
        elif self._grown == 2000:
            self._scale, self._grown = self._scale * 2, 0


# Methods whose steps are taken back where the scaler skips them, beside all methods whose steps are not.
TAKEN_BACK = ["onebit", "signum", "topk", "randomk", "dgc"]


def overflows(rank, ranks, folder):
    """Steps that a scaler skips, and losses, of a training whose first steps overflow in float16, under each method."""
    workers.enter(rank, ranks, folder)
    found = {}
    teacher = torch.randn(24, 24, generator=torch.Generator().manual_seed(9))
    for name in ["plain", *(name for name, _ in gradwire.methods())]:
        for undo in [False, True] if name in TAKEN_BACK else [False]:
            torch.manual_seed(0)
            module = torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.ReLU(), torch.nn.Linear(24, 24))
            scaler = torch.amp.GradScaler("cpu") if hasattr(torch.amp, "GradScaler") else Scaler()
            model, state = DistributedDataParallel(module), None
            if name != "plain":
                model, state = hooked(f"grace:{name}", module, scaler=scaler)
            # Steps of one length, however large what a method sends is, and no momentum beside a method's own.
            optimizer = torch.optim.Adam(model.parameters(), 0.05, betas=(0.0, 0.999))
            draws = torch.Generator().manual_seed(rank)
            skipped, losses = 0, []
            for _ in range(60):
                inputs = torch.randn(16, 24, generator=draws)
                optimizer.zero_grad()
                # The gradient of an output is about 100 times the scale, and half precision ends at 65504.
                loss = 50 * (Overflow.apply(model(inputs)) - inputs @ teacher).pow(2).sum() / 16
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                before = scaler.get_scale()
                scaler.update()
                losses.append(float(loss.detach()))
                if scaler.get_scale() < before:
                    skipped += 1
                    if undo:
                        state.undo_step()
            assert all(bool(parameter.isfinite().all()) for parameter in model.parameters()), name
            found[name, undo] = (skipped, losses[0], sum(losses[-8:]) / 8, workers.same_everywhere(model))
            if state is not None:
                state.close()
    workers.leave(found, folder, rank)
