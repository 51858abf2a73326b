"""What each process of the tests with torch runs."""

import datetime
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

DEADLINE = datetime.timedelta(seconds=60)


def enter(rank, ranks, folder, deadline=DEADLINE):
    """Joins the other processes."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    method = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=ranks, timeout=deadline)


def leave(result, folder, rank):
    """Writes what the test asks for, and leaves when all are ready: gloo's threads do not outlive their process in peace."""
    torch.save(result, f"{folder}/result-{rank}")
    dist.barrier()
    dist.destroy_process_group()


def network(seed):
    """A small network for points of the plane."""
    torch.manual_seed(seed)
    layer = torch.nn.Linear
    return torch.nn.Sequential(layer(2, 64), torch.nn.Tanh(), layer(64, 64), torch.nn.Tanh(), layer(64, 3))


def points(count, seed):
    """Points of three spiral arms, and the arm of each: no straight line tells them apart."""
    draws = torch.Generator().manual_seed(seed)
    arm = torch.randint(3, (count,), generator=draws)
    along = torch.rand(count, generator=draws)
    angle = 4 * along + 2.0944 * arm + 0.15 * torch.randn(count, generator=draws)
    return torch.stack([along * angle.cos(), along * angle.sin()], 1) * 3, arm


def train(rank, ranks, model, steps, seed, each=lambda step: None):
    """Trains a model that DDP holds; every rank has points of its own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = points(512, 1000 * seed + rank)
    draws = torch.Generator().manual_seed(rank)
    for step in range(steps):
        chosen = torch.randint(512, (64,), generator=draws)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()
        each(step)


def accuracy(model, seed):
    """The part of new points that the model knows."""
    inputs, labels = points(2000, 1000 * seed + 999)
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


def weights(model):
    """All weights one behind the other."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def same_everywhere(model):
    """Whether all ranks have the same bits."""
    mine = weights(model).view(torch.int32)
    all = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all, mine)
    return all_equal(all)


def all_equal(tensors):
    return all(torch.equal(tensors[0], tensor) for tensor in tensors)


def learn(rank, ranks, folder, recipes, seeds, steps):
    """Trains under each recipe and seed; the first rank writes accuracies."""
    enter(rank, ranks, folder)
    results = {}
    for recipe in recipes:
        for seed in seeds:
            model = DistributedDataParallel(network(seed), bucket_cap_mb=0.01)
            state = None
            if recipe != "plain":
                state = gradwire.torch.State(recipe, seed=seed, small=0, warm_up=1 if seed % 2 else 0)
                model.register_comm_hook(state, gradwire.torch.hook)
            train(rank, ranks, model, steps, seed)
            results[recipe, seed] = (accuracy(model, seed), same_everywhere(model))
            if state is not None:
                assert state.steps == steps and state.sent_bytes > 0
                state.close()
    leave(results, folder, rank)


def resume(rank, ranks, folder, recipes):
    """Trains under each recipe, saves, and goes on in a new state; whether the bits are the same."""
    enter(rank, ranks, folder)
    leave([resumed(rank, folder, recipe) for recipe in recipes], folder, rank)


def resumed(rank, folder, recipe):
    def begin(saved=None):
        model = DistributedDataParallel(network(1), bucket_cap_mb=0.01)
        state = gradwire.torch.State(recipe, seed=3, small=0, model=model)
        model.register_comm_hook(state, gradwire.torch.hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if saved is not None:
            model.load_state_dict(saved["model"])
            state.load_state_dict(saved["state"])
        return model, state, optimizer

    def step(model, optimizer, number):
        inputs, labels = points(64, 100 * number + rank)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    model, state, optimizer = begin()
    for number in range(5):
        step(model, optimizer, number)
    saved = {"model": model.state_dict(), "state": state.state_dict()}
    torch.save(saved, f"{folder}/saved-{rank}")
    saved = torch.load(f"{folder}/saved-{rank}")
    for number in range(5, 9):
        step(model, optimizer, number)
    again, state_again, optimizer = begin(saved)
    for number in range(5, 9):
        step(again, optimizer, number)
    return torch.equal(weights(model).view(torch.int32), weights(again).view(torch.int32))


def reshard(rank, ranks, folder, recipe, states):
    """Takes up the states of another number of ranks; writes the sum of the residuals."""
    enter(rank, ranks, folder)
    model = DistributedDataParallel(network(1), bucket_cap_mb=0.01)
    state = gradwire.torch.State(recipe, seed=3, small=0, model=model)
    text = ""
    try:
        state.load_state_dict(states[0])
    except gradwire.StateError as error:
        text = str(error)
    for wrong in [[], states[:-1], states[::-1], states[:1] * len(states)]:
        try:
            state.load_state_dict(wrong)
        except gradwire.StateError as error:
            assert "from rank 0 on" in str(error), error
        else:
            raise AssertionError("states of some ranks were taken")
    state.load_state_dict(states)
    leave((text, residuals(state)), folder, rank)


def residuals(state):
    """The residual of each parameter."""
    found = {}
    for (names, shapes), compressor in state._buckets.items():
        whole = torch.empty(compressor.elements)
        compressor.residual_into(whole)
        for name, shape in zip(names, shapes):
            mine, whole = whole.split([torch.Size(shape).numel(), whole.numel() - torch.Size(shape).numel()])
            found[name] = mine.clone()
    return found


def die(rank, ranks, folder, recipe):
    """The last rank ends in the middle; the others have to see it within their deadline."""
    enter(rank, ranks, folder, datetime.timedelta(seconds=5))
    model = DistributedDataParallel(network(1), bucket_cap_mb=0.01)
    state = gradwire.torch.State(recipe, small=0, timeout=datetime.timedelta(seconds=5))
    model.register_comm_hook(state, gradwire.torch.hook)

    def each(step):
        if step == 3 and rank == ranks - 1:
            os._exit(0)

    try:
        train(rank, ranks, model, 8, 1, each)
    except Exception as error:
        first = f"{type(error).__name__}: {error}"
        try:
            train(rank, ranks, model, 1, 1)
        except Exception as error:
            torch.save((first, f"{type(error).__name__}: {error}"), f"{folder}/result-{rank}")
    # Without the others there is nothing to tidy up.
    os._exit(0)


def addresses(rank, ranks, folder):
    """Compares the memory that the hook gets with the memory that the compressor is handed, and what comes back."""
    enter(rank, ranks, folder)
    model = DistributedDataParallel(network(1), gradient_as_bucket_view=True)
    state = gradwire.torch.State("qsgd:bits=8,bucket=64+ef", small=0)
    seen = {"bucket": [], "compressor": []}
    make = state._compressor

    class Watched:
        def __init__(self, key):
            self._inner = make(key)

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def exchange(self, device, group, gradient, *, stream=0, in_place=False):
            seen["compressor"].append(gradient.data_ptr())
            assert in_place
            before = gradient.clone()
            self._inner.exchange(device, group, gradient, in_place=in_place)
            assert not torch.equal(before, gradient)

    state._compressor = Watched

    def hook(state, bucket):
        if state.steps > 0:
            seen["bucket"].append(bucket.buffer().data_ptr())
        return gradwire.torch.hook(state, bucket)

    model.register_comm_hook(state, hook)
    train(rank, ranks, model, 4, 1)
    leave(seen, folder, rank)


def groups(rank, ranks, folder):
    """Every operation of a group, on lengths that differ, and on none."""
    enter(rank, ranks, folder)
    group = gradwire.torch.Group()
    for round in range(4):
        length = lambda r: [0, 5 * r, 1000 - 300 * r, 7][round]
        mine = bytes([rank + 1]) * length(rank)
        assert group.all_gather(mine) == [bytes([r + 1]) * length(r) for r in range(ranks)]
        parts = [bytes([10 * rank + r]) * (length(r) + rank) for r in range(ranks)]
        assert group.all_to_all(parts) == [bytes([10 * r + rank]) * (length(rank) + r) for r in range(ranks)]
        if rank < 2:
            theirs = group.exchange(1 - rank, mine)
            assert theirs == bytes([2 - rank]) * length(1 - rank)
        assert group.broadcast(1, mine) == bytes([2]) * length(1)
        values = bytearray(torch.full([length(1)], float(rank + 1)).numpy().tobytes())
        group.all_reduce_sum(values)
        expected = torch.full([length(1)], ranks * (ranks + 1) / 2).numpy().tobytes()
        assert bytes(values) == expected
    leave(True, folder, rank)


class Bucket:
    """A bucket as the hook sees it."""

    def __init__(self, parameters, dtype, draws):
        self._parameters = parameters
        self._buffer = torch.randn(sum(p.numel() for p in parameters), generator=draws).to(dtype)

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def is_last(self):
        return True


def buckets(rank, ranks, folder):
    """Gradients of half precision, buckets that do not fit their parameters, a closed state, a group of some ranks."""
    enter(rank, ranks, folder)
    parameters = list(network(1).parameters())
    draws = torch.Generator().manual_seed(rank)
    results = []
    for dtype in [torch.float16, torch.bfloat16]:
        state = gradwire.torch.State("qsgd:bits=8,bucket=64", small=0, warm_up=0)
        bucket = Bucket(parameters, dtype, draws)
        given = bucket.buffer().float()
        mean = gradwire.torch.hook(state, bucket).wait()
        assert mean.dtype == dtype and mean.data_ptr() == bucket.buffer().data_ptr()
        total = given.clone()
        dist.all_reduce(total)
        # Eight bits of the largest of 64 normal draws, and the type's own rounding.
        results.append(float((mean.float() - total / ranks).abs().max()))
        all = [torch.empty_like(given) for _ in range(ranks)]
        dist.all_gather(all, mean.float())
        assert all_equal(all)
    texts = []
    bucket = Bucket(parameters, torch.float32, draws)
    bucket._buffer = bucket.buffer()[:-1].clone()
    for broken, wrong in [(state, bucket), (gradwire.torch.State("none"), Bucket(parameters, torch.float32, draws))]:
        if wrong is not bucket:
            broken.close()
        try:
            gradwire.torch.hook(broken, wrong)
        except gradwire.Error as error:
            texts.append(str(error))
    for refused in [state.state_dict, lambda: state.load_state_dict([])]:
        try:
            refused()
        except gradwire.StateError as error:
            texts.append(str(error))
    assert state.steps == 1, "what was refused is no step"
    some = dist.new_group([0, 1])
    if rank < 2:
        state = gradwire.torch.State("onebit", some, small=0, warm_up=0)
        assert state._group.ranks == 2
        gradwire.torch.hook(state, Bucket(parameters, torch.float32, draws)).wait()
    leave((results, texts), folder, rank)


def scatter(rank, ranks, folder):
    """A reduce-scatter by itself, as FSDP2 calls it: sums, means, what is not sent, half precision, refusals."""
    enter(rank, ranks, folder)
    draws = torch.Generator().manual_seed(rank)
    found = {}
    for recipe in ["float:bf16,nearest+noef", "topk:0.5+ef", "qsgd:bits=8,bucket=64+ef"]:
        comm, total, given = gradwire.torch.ReduceScatter(recipe, seed=1), torch.zeros(100), torch.zeros(ranks * 100)
        for _ in range(30):
            gradient = torch.randint(-8, 9, (ranks * 100,), generator=draws).float()
            given += gradient
            output = comm.allocate((100,), dtype=torch.float32, device="cpu")
            comm(output_tensor=output, input_tensor=gradient, group=dist.group.WORLD, op=dist.ReduceOp.SUM)
            total += output
        unsent = torch.zeros(ranks * 100) if comm._residual is None else comm._residual.reshape(-1)
        balance = given - unsent
        dist.all_reduce(balance)
        found[recipe] = float((balance.reshape(ranks, -1)[rank] - total).abs().max())
        assert comm.steps == 30 and comm.sent_bytes > 0
    comm = gradwire.torch.ReduceScatter("float:bf16,nearest+noef")
    output = torch.empty(100, dtype=torch.bfloat16)
    comm(output, torch.full([ranks * 100], rank + 1.0, dtype=torch.bfloat16), dist.group.WORLD, dist.ReduceOp.AVG)
    assert (output == (ranks + 1) / 2).all()
    texts = []
    for wrong in [
        lambda: comm(output, torch.zeros(ranks * 100), dist.group.WORLD, dist.ReduceOp.MAX),
        lambda: gradwire.torch.ReduceScatter("powersgd:rank=4"),
        lambda: gradwire.torch.compress_fsdp(network(1), "topk:0.01+ef"),
    ]:
        try:
            wrong()
        except gradwire.SettingError as error:
            texts.append(str(error))
    leave((found, texts), folder, rank)


def fsdp(rank, ranks, folder, recipe, replicas):
    """Trains under FSDP2, plainly and compressed; with replicas, pairs of ranks hold the same shard."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    enter(rank, ranks, folder)
    shape, names = ((ranks // 2, 2), ("replicate", "shard")) if replicas else ((ranks,), ("shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    results = []
    for compressed in [False, True]:
        model = network(1)
        for layer in [model[0], model[2], model[4], model]:
            fully_shard(layer, mesh=mesh["shard"] if replicas else mesh)
        if compressed:
            held = gradwire.torch.compress_fsdp(
                model, recipe, seed=5, replicas=mesh["replicate"].get_group() if replicas else None
            )
        train(rank, ranks, model, 150, 1)
        full = [parameter.full_tensor() for parameter in model.parameters()]
        plain = network(1)
        with torch.no_grad():
            for mine, theirs in zip(plain.parameters(), full):
                mine.copy_(theirs)
        results.append((accuracy(plain, 1), not replicas or not compressed or same_everywhere(plain)))
    assert all(comm.steps == 150 and comm.sent_bytes > 0 for comm in held if comm.steps)
    assert sum(comm.steps > 0 for comm in held) == 3
    leave(results, folder, rank)


def loop(rank, ranks, folder, recipes):
    """A loop without DDP: gradients averaged by hand, a parameter that one rank does not use, a state that goes on."""
    enter(rank, ranks, folder)
    leave([looped(rank, recipe) for recipe in recipes], folder, rank)


def looped(rank, recipe):
    model = network(1)
    spare = torch.nn.Parameter(torch.zeros(3))
    model.register_parameter("spare", spare)
    gradients = gradwire.torch.Gradients(model, recipe, small=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number, gradients):
        inputs, labels = points(64, 100 * number + rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        if rank == 0:
            loss = loss + spare.sum()
        loss.backward()
        gradients.average()
        optimizer.step()

    for number in range(4):
        step(number, gradients)
    assert gradients.sent_bytes > 0
    assert (spare != 0).all()
    again = gradwire.torch.Gradients(model, recipe, small=0)
    again.load_state_dict(gradients.state_dict())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step(4, gradients)
    first = weights(model).clone()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), before):
            parameter.copy_(value)
    step(4, again)
    return same_everywhere(model), torch.equal(first, weights(model))


def leak(rank, ranks, folder):
    """1,000 steps of the hook: how many KiB the process has grown by, behind 200 to warm up. torch's names of PowerSGD."""
    import gc
    import resource

    enter(rank, ranks, folder)
    texts = []
    state = gradwire.torch.PowerSGDState(
        matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=1.5, random_seed=4
    )
    assert (state.recipe, state.warm_up, state.seed) == ("powersgd:rank=2,mincompression=1.5", 3, 4)
    plain = gradwire.torch.PowerSGDState(use_error_feedback=False)
    assert (plain.recipe, plain.warm_up) == ("powersgd:rank=1+noef", 1000)
    try:
        gradwire.torch.PowerSGDState(warm_start=False)
    except gradwire.SettingError as error:
        texts.append(str(error))
    quantized = gradwire.torch.State("topk:0.05+ef", small=0)
    matrix = torch.nn.Parameter(torch.zeros(100, 80))
    draws = torch.Generator().manual_seed(rank)

    def steps(count):
        for _ in range(count):
            for one in [state, quantized]:
                mean = gradwire.torch.hook(one, Bucket([matrix], torch.float32, draws)).wait()
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, mean

    before, _ = steps(200)
    after, mean = steps(1000)
    all = [torch.empty_like(mean) for _ in range(ranks)]
    dist.all_gather(all, mean)
    assert all_equal(all) and state.steps == quantized.steps == 1200
    # Three uncompressed steps; then two factors of rank 2.
    assert state.sent_bytes < 3 * 32000 + 1200 * (4 * 2 * (100 + 80) + 200)
    leave((after - before, texts), folder, rank)
