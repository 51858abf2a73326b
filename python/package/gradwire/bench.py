"""Times communication hooks beside one another: ``python -m gradwire.bench``.

A model of one matrix is trained by processes over gloo. What is timed is a whole step, of which forward and backward are
a small part. On one machine the network is its memory, which no codec beats: read the times against the bytes.
"""

import argparse
import datetime
import json
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch

RECIPES = ["none", "qsgd:bits=4,bucket=64+ef", "qsgd:bits=8,bucket=512+ef", "onebit", "topk:0.01+ef", "powersgd:rank=4"]


class _Model(torch.nn.Module):
    """One matrix, whose gradient is different on each rank and costs little."""

    def __init__(self, side):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.zeros(side, side))

    def forward(self, given):
        return (self.matrix * given).sum()


def _torch_hooks(rank):
    """Hooks that torch brings."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks

    # torch's own needs a step or two before, in which DDP makes its buckets anew.
    state = lambda: powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    return {
        "torch: no hook": lambda model: None,
        "torch: fp16_compress_hook": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
        "torch: quantization_pertensor_hook": lambda model: model.register_comm_hook(
            dist.group.WORLD, quantization_hooks.quantization_pertensor_hook
        ),
        "torch: powerSGD_hook, rank 4": lambda model: model.register_comm_hook(state(), powerSGD_hook.powerSGD_hook),
    }


def _step(model, given):
    model.zero_grad(set_to_none=False)
    model(given).backward()


def _process(rank, ranks, folder, side, steps, recipes):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks, timeout=datetime.timedelta(minutes=5)
    )
    draws = torch.Generator().manual_seed(rank)
    # Left factors of few columns beside noise, as gradients of a layer have them.
    given = torch.randn(side, 8, generator=draws) @ torch.randn(8, side, generator=draws)
    given += torch.randn(side, side, generator=draws)
    mean = given.clone()
    dist.all_reduce(mean)
    mean /= ranks
    rows = []

    def measure(name, register):
        try:
            rows.append({"hook": name, **run(register)})
        except Exception as error:  # A hook of torch's that this machine or this backend does not run.
            rows.append({"hook": name, "failed": str(error).strip().splitlines()[-1]})

    def run(register):
        model = DistributedDataParallel(_Model(side), gradient_as_bucket_view=True, bucket_cap_mb=1000)
        state = register(model)
        times, total = [], torch.zeros_like(mean)
        for step in range(steps + 3):
            dist.barrier()
            began = time.perf_counter()
            _step(model, given)
            times.append(time.perf_counter() - began)
            total += next(model.parameters()).grad
        row = {
            "milliseconds": 1000 * statistics.median(times[3:]),
            "error": float((total / len(times) - mean).norm() / mean.norm()),
        }
        if state is not None:
            before = state.sent_bytes
            _step(model, given)
            row["megabytes"] = (state.sent_bytes - before) / 1e6
            state.close()
        return row

    for name, register in _torch_hooks(rank).items():
        measure(name, register)
    for recipe in recipes:

        def register(model):
            state = gradwire.torch.State(recipe)
            model.register_comm_hook(state, gradwire.torch.hook)
            return state

        measure(recipe, register)
    if rank == 0:
        with open(f"{folder}/rows", "w") as file:
            json.dump(rows, file)
    dist.barrier()
    dist.destroy_process_group()


def measure(ranks=2, side=2560, steps=10, recipes=RECIPES):
    """A row for each hook: milliseconds of a step, megabytes that a rank hands over, relative error of the mean of all steps."""
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(_process, (ranks, folder, side, steps, recipes), ranks)
        with open(f"{folder}/rows") as file:
            return json.load(file)


def draw(rows, path):
    """A chart of times against bytes; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    known = [row for row in rows if "megabytes" in row]
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    axes.scatter([row["megabytes"] for row in known], [row["milliseconds"] for row in known])
    for row in known:
        axes.annotate(row["hook"], (row["megabytes"], row["milliseconds"]), (6, 4), textcoords="offset points")
    for row in rows:
        if "milliseconds" in row and "megabytes" not in row:
            axes.axhline(row["milliseconds"], linestyle=":", color="gray")
            axes.annotate(row["hook"], (0.99, row["milliseconds"]), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("megabytes that a rank hands over per step")
    axes.set_ylabel("milliseconds per step")
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(prog="python -m gradwire.bench", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes; 2 unless said otherwise")
    parser.add_argument("--side", type=int, default=2560, help="of the matrix; 2560 is a bucket of 26 MB")
    parser.add_argument("--steps", type=int, default=10, help="of which the median is taken")
    parser.add_argument("--recipe", action="append", help="in the place of the usual ones; more than once for several")
    parser.add_argument("--json", help="where the rows go as JSON")
    parser.add_argument("--chart", help="where a chart goes; needs matplotlib")
    asked = parser.parse_args()
    recipes = [gradwire.recipe(text) for text in asked.recipe or RECIPES]
    print(f"{asked.ranks} processes over gloo, {4e-6 * asked.side**2:.0f} MB of gradient, torch {torch.__version__}")
    rows = measure(asked.ranks, asked.side, asked.steps, recipes)
    print(f"{'hook':34} {'ms per step':>12} {'MB per rank':>12} {'error':>8}")
    for row in rows:
        if "failed" in row:
            print(f"{row['hook']:34} failed: {row['failed']}")
            continue
        sent = f"{row['megabytes']:.2f}" if "megabytes" in row else ""
        print(f"{row['hook']:34} {row['milliseconds']:12.1f} {sent:>12} {row['error']:8.4f}")
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump(rows, file, indent=1)
    if asked.chart:
        draw(rows, asked.chart)
        print(f"chart {asked.chart}")


if __name__ == "__main__":
    main()
