"""Trains a small network on handwritten-like digits with compressed gradients, in as many processes as are asked for.

    torchrun --nproc_per_node 2 python/examples/train.py
    torchrun --nproc_per_node 2 python/examples/train.py --recipe powersgd:rank=2

Without torchrun on the path: `python -m torch.distributed.run` in its place. Every process has digits of its own.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

# Ten digits of seven segments, each drawn on 8 by 8 points.
SEGMENTS = ["abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg"]
PLACES = {
    "a": (0, slice(2, 6)), "b": (slice(1, 4), 6), "c": (slice(4, 7), 6), "d": (7, slice(2, 6)),
    "e": (slice(4, 7), 1), "f": (slice(1, 4), 1), "g": (3, slice(2, 6)),
}  # fmt: skip


def digits(count, seed):
    """Digits under noise, and what each is."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=draws)
    clean = torch.zeros(10, 8, 8)
    for digit, segments in enumerate(SEGMENTS):
        for segment in segments:
            clean[digit][PLACES[segment]] = 1
    seen = (torch.rand(count, 8, 8, generator=draws) < 0.85).float()
    return clean[labels] * seen + 0.35 * torch.randn(count, 8, 8, generator=draws), labels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="qsgd:bits=4,bucket=64+ef", help="what becomes of the gradients, or none")
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    layer = torch.nn.Linear
    network = torch.nn.Sequential(torch.nn.Flatten(), layer(64, 128), torch.nn.ReLU(), layer(128, 10))
    model = DistributedDataParallel(network)

    # The one line, and the state that it keeps.
    state = gradwire.torch.State(asked.recipe, model=model)
    model.register_comm_hook(state, gradwire.torch.hook)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = digits(4096, dist.get_rank() + 10)
    for step in range(asked.steps):
        chosen = torch.randint(4096, (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()

    inputs, labels = digits(4096, 1)
    with torch.no_grad():
        right = (model(inputs).argmax(1) == labels).float().mean().item()
    plain = 4 * asked.steps * sum(parameter.numel() for parameter in network.parameters())
    if dist.get_rank() == 0:
        sent = state.sent_bytes
        print(f"{asked.recipe}: {100 * right:.1f} % right, {sent / 1e6:.2f} MB for {plain / 1e6:.2f} MB of gradients")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
