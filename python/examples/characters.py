"""Trains a model of characters with each of several recipes, and prints what each costs in accuracy.

    torchrun --nproc_per_node 2 python/examples/characters.py
    torchrun --nproc_per_node 2 python/examples/characters.py none powersgd:rank=2 --seeds 3

The text is that of Python's own help (`pydoc_data.topics`), so that nothing is downloaded. Every process learns from
places of its own. The loss is that of text which no process has seen, in nats per character.
"""

import argparse
import pydoc_data.topics

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

RECIPES = [
    "none", "qsgd:bits=4,bucket=64+ef", "onebit", "eden:bits=1", "drive", "powersgd:rank=4", "topk:0.01+ef",
    "topk:0.001+ef", "dgc:ratio=0.01,warmup=200",
]  # fmt: skip
LENGTH, BATCH, WIDTH, LAST = 48, 8, 96, 10


class Model(torch.nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.enter = torch.nn.Embedding(letters, WIDTH // 2)
        self.layer = torch.nn.GRU(WIDTH // 2, WIDTH, batch_first=True)
        self.leave = torch.nn.Linear(WIDTH, letters)

    def forward(self, text):
        return self.leave(self.layer(self.enter(text))[0])


def lines(text, count, draws):
    """Characters at random places, and for each the one that follows."""
    places = torch.randint(len(text) - LENGTH - 1, (count,), generator=draws)
    chosen = torch.stack([text[place : place + LENGTH + 1] for place in places])
    return chosen[:, :-1], chosen[:, 1:]


def loss_of(model, inputs, following):
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), following.flatten())


def train(recipe, steps, seed, learned, unseen, letters):
    """The loss after these steps, and the bytes that a rank hands over in one of the last."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(Model(letters))
    state = gradwire.torch.State(recipe, model=model, seed=seed)
    model.register_comm_hook(state, gradwire.torch.hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    draws = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    before = 0
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *lines(learned, BATCH, draws)).backward()
        optimizer.step()
        if step == steps - LAST - 1:
            before = state.sent_bytes
    with torch.no_grad():
        loss = loss_of(model.module, *lines(unseen, 1024, torch.Generator().manual_seed(1))).item()
    return loss, (state.sent_bytes - before) / LAST


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=RECIPES, help="what becomes of the gradients")
    parser.add_argument("--steps", type=int, default=1000, help="steps of each training, more than 10")
    parser.add_argument("--seeds", type=int, default=1, help="trainings with each recipe")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    alphabet = {letter: number for number, letter in enumerate(sorted(set(text)))}
    text = torch.tensor([alphabet[letter] for letter in text])
    learned, unseen = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]

    first = dist.get_rank() == 0
    if first:
        print("| recipe | loss | beside the first | bytes of a step | times less |\n|---|---|---|---|---|", flush=True)
    least = None
    for recipe in asked.recipes:
        runs = [train(recipe, asked.steps, seed, learned, unseen, len(alphabet)) for seed in range(1, asked.seeds + 1)]
        loss = sum(loss for loss, _ in runs) / len(runs)
        sent = runs[0][1]
        least = least or (loss, sent)
        if first:
            beside, times = loss - least[0], least[1] / sent
            print(f"| `{recipe}` | {loss:.3f} | {beside:+.3f} | {sent:.0f} | {times:.1f} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
