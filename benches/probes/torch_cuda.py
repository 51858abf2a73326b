"""Gradwire's PyTorch package on a CUDA device: bits beside the CPU's, milliseconds per step, copies counted.

    python benches/probes/torch_cuda.py                # a line of JSON for each finding
    python benches/probes/torch_cuda.py --device cpu   # the same code without a GPU, to try the script

Two ranks share the device over gloo; one rank runs NCCL, which takes no two on one device. The exit code is 1 if bits
differ or a part fails.
"""

import argparse
import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch

# Bits equal the CPU's for all but PowerSGD, whose error is bounded instead.
RECIPES = [
    "qsgd:bits=4,bucket=64+ef",
    "qsgd:bits=8,bucket=512,l2+ef",
    "uniform:bits=4,bucket=512",
    "topk:0.01+ef",
    "topk:0.01+momentum=0.9",
    "onebit",
    "sign:bucket=512+ef",
    "ternary:bucket=512",
    "natural:bits=8+ef",
    "tree+ef",
    "quantile:levels=16,bucket=256+ef",
    "float:e4m3,scaled",
    "drive:bucket=1024",
    "eden:bits=4,bucket=1024",
    "dct+topk:0.05+ef",
    "randomk:0.05",
    "topk:0.05+ef21",
    "powersgd:rank=4",
    "powersgd:rank=32",
]
TRAINED = ["qsgd:bits=4,bucket=64+ef", "topk:0.01+ef", "onebit", "powersgd:rank=4", "eden:bits=4,bucket=1024"]
SHARDED = ["qsgd:bits=8,bucket=64+ef", "qsgd:bits=4,bucket=64", "onebit", "topk:0.01+ef"]
SHAPES = [[1024, 1024]] * 6 + [[300, 700], [70000]]


def say(**found):
    print(json.dumps(found), flush=True)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def enter(rank, ranks, folder, backend):
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    torch.manual_seed(0)


def bits(rank, folder, device):
    """The same exchange of a tensor on the device and of one on the CPU."""
    enter(rank, 2, folder, "gloo")
    group = gradwire.torch.Group()
    host = gradwire.Device.cpu()
    n = sum(torch.Size(shape).numel() for shape in SHAPES)
    bad = []
    for recipe in RECIPES:
        try:
            torch.manual_seed(rank)
            both = [gradwire.Compressor(recipe, SHAPES, 7) for _ in range(2)]
            equal, worst, times = True, 0.0, [[], []]
            for step in range(6):
                x = torch.randn(n) ** 3
                here, there = x.clone(), x.to(device)
                wait(device)
                for index, (compressor, tensor) in enumerate(zip(both, (here, there))):
                    group.begin(recipe)
                    dist.barrier()
                    start = time.perf_counter()
                    if index and device == "cuda":
                        compressor.exchange(host, group, tensor, stream=torch.cuda.current_stream().cuda_stream)
                    else:
                        compressor.exchange(host, group, tensor)
                    wait(device)
                    times[index].append(time.perf_counter() - start)
                back = there.cpu()
                equal &= torch.equal(here.view(torch.int32), back.view(torch.int32))
                worst = max(worst, ((here - back).norm() / here.norm()).item())
            good = worst < 1e-4 if "powersgd" in recipe else equal
            if not good:
                bad.append(recipe)
            if rank == 0:
                cpu_ms, device_ms = [round(1e3 * sorted(each)[len(each) // 2], 2) for each in times]
                say(part="bits", recipe=recipe, good=good, equal=equal, error=worst, elements=n, cpu_ms=cpu_ms, device_ms=device_ms)
        except Exception as error:
            bad.append(recipe)
            say(part="bits", rank=rank, recipe=recipe, good=False, why=f"{type(error).__name__}: {error}"[:300])
            if isinstance(error, (gradwire.GroupError, RuntimeError)):
                raise
    dist.destroy_process_group()
    if bad:
        raise RuntimeError(f"rank {rank}: {', '.join(bad)} failed")


def model(width, layers, device, dtype=torch.float32):
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, device=device, dtype=dtype)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def train(rank, ranks, folder, device, backend, recipe, steps, width, layers):
    """A training under DDP: the loss at its end, the weights of all ranks, milliseconds per step."""
    enter(rank, ranks, folder, backend)
    net = model(width, layers, device)
    ddp = DistributedDataParallel(net)
    state = None
    if recipe:
        state = gradwire.torch.State(recipe, model=ddp)
        ddp.register_comm_hook(state, gradwire.torch.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    torch.manual_seed(100 + rank)
    times, losses = [], []
    for step in range(steps):
        x = torch.randn(4, 32, width, device=device)
        wait(device)
        start = time.perf_counter()
        loss = ((ddp(x) - x.flip(1)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wait(device)
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
    flat = torch.cat([p.detach().reshape(-1).cpu() for p in net.parameters()])
    both = [torch.empty_like(flat) for _ in range(ranks)]
    if backend == "gloo":
        dist.all_gather(both, flat)
    else:
        both = [flat]
    if rank == 0:
        same = all(torch.equal(each, both[0]) for each in both)
        found = dict(part="ddp", backend=backend, ranks=ranks, recipe=recipe or "no hook", good=same)
        found.update(parameters=flat.numel(), ms=round(1e3 * sorted(times[3:])[len(times[3:]) // 2], 2))
        found.update(first=round(losses[0], 4), last=round(sum(losses[-5:]) / 5, 4))
        if device == "cuda" and recipe:
            found.update(copies(lambda: one(ddp, optimizer, width, device)))
        say(**found)
        if not same:
            raise RuntimeError(f"{recipe}: the ranks' weights differ")
    elif device == "cuda" and recipe and ranks > 1:
        one(ddp, optimizer, width, device)
    if state is not None:
        state.close()
    dist.destroy_process_group()


def one(ddp, optimizer, width, device):
    loss = ddp(torch.zeros(4, 32, width, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    wait(device)


def copies(step):
    """Copies between device and host in one step, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        step()
    counted = {}
    for event in seen.events():
        for kind in ("HtoD", "DtoH"):
            if kind in event.name and "Memcpy" in event.name:
                counted[kind] = counted.get(kind, 0) + 1
    return {"copies": counted}


def gradients(rank, folder, device):
    """`Gradients` on a model whose parameters are on the device."""
    enter(rank, 2, folder, "gloo")
    net = model(256, 2, device)
    for recipe in TRAINED:
        averaged = gradwire.torch.Gradients(net, recipe)
        times = []
        for step in range(5):
            torch.manual_seed(rank + 10 * step)
            for parameter in net.parameters():
                parameter.grad = torch.randn_like(parameter)
            wait(device)
            start = time.perf_counter()
            averaged.average()
            wait(device)
            times.append(time.perf_counter() - start)
        flat = torch.cat([p.grad.reshape(-1).cpu() for p in net.parameters()])
        both = [torch.empty_like(flat) for _ in range(2)]
        dist.all_gather(both, flat)
        if not torch.equal(*both):
            raise RuntimeError(f"{recipe}: the ranks' gradients differ")
        if rank == 0:
            say(part="Gradients", recipe=recipe, good=True, elements=flat.numel(), ms=round(1e3 * sorted(times)[2], 2))
    dist.destroy_process_group()


def fsdp(rank, folder, device, recipe):
    """FSDP2 in bf16, of two ranks over gloo: milliseconds per step, and the first gradient's distance from the plain one."""
    enter(rank, 2, folder, "gloo")
    from torch.distributed.fsdp import fully_shard

    width, layers = (1024, 8) if device == "cuda" else (64, 2)
    first, medians = [], []
    for compressed in [False, True]:
        torch.manual_seed(0)
        net = model(width, layers, device, torch.bfloat16)
        count = sum(p.numel() for p in net.parameters())
        for layer in net.layers:
            fully_shard(layer)
        fully_shard(net)
        for module in [net, *net.layers]:
            # gloo has no ReduceOp.AVG.
            module.set_force_sum_reduction_for_comms(True)
        if compressed:
            gradwire.torch.compress_fsdp(net, recipe)
        times = []
        torch.manual_seed(100 + rank)
        for step in range(6):
            x = torch.randn(2, 16, width, device=device, dtype=torch.bfloat16)
            wait(device)
            dist.barrier()
            start = time.perf_counter()
            net(x).float().square().mean().backward()
            wait(device)
            times.append(time.perf_counter() - start)
            if step == 0:
                first.append(torch.cat([p.grad.to_local().float().reshape(-1) for p in net.parameters()]))
            net.zero_grad()
        medians.append(round(1e3 * sorted(times)[3], 2))
    error = ((first[1] - first[0]).norm() / first[0].norm()).item()
    if rank == 0:
        say(part="FSDP2", recipe=recipe, good=error < 1, error=error, parameters=count, plain_ms=medians[0], ms=medians[1])
    dist.destroy_process_group()
    if not error < 1:
        raise RuntimeError(f"{recipe}: the gradient is {error} of its norm away from the plain one")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments.add_argument("--only", default="")
    asked = arguments.parse_args()
    device = asked.device
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    say(part="machine", torch=torch.__version__, gradwire=gradwire.__version__, device=name)
    failed = False

    def run(part, work, ranks, *rest):
        nonlocal failed
        if asked.only not in part:
            return
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            try:
                mp.spawn(work, args=tuple(folder if each == "FOLDER" else each for each in rest), nprocs=ranks)
            except Exception as error:
                failed = True
                say(part=part, good=False, why=str(error)[-1500:])
            say(part=part, seconds=round(time.perf_counter() - start, 1))

    run("bits", bits, 2, "FOLDER", device)
    for recipe in [None, *TRAINED]:
        run("ddp gloo", train, 2, 2, "FOLDER", device, "gloo", recipe, 30, 256, 4)
    nccl = "nccl" if device == "cuda" else "gloo"
    for recipe in [None, *TRAINED]:
        run("ddp nccl", train, 1, 1, "FOLDER", device, nccl, recipe, 15, 1024, 8)
    run("Gradients", gradients, 2, "FOLDER", device)
    for recipe in SHARDED:
        run("FSDP2", fsdp, 2, "FOLDER", device, recipe)
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    sys.exit(main())
