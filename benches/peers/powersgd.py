"""Times PowerSGD's mathematics in numpy or in torch on the CPU: what `cargo xtask bench --codec powersgd --peers` places
beside its own.

    python3 powersgd.py --framework torch --size 16777216 --ranks 1,4 --json out.json

A step is: residual += gradient; P = M Q; P made orthonormal; Q = M^T P; output = P Q^T; residual = M - output; Q made
orthonormal for the next step. All large buffers are allocated beforehand. Variants differ in how M^T P is asked for, since
libraries are fast at one of them and slow at another, and in whether blocks of rows go through several operations while they
are in a cache. The fastest is the best; `plain` is the first, which is how a hook is usually written.
"""

import argparse
import json
import statistics
import time

from common import require


def median_seconds(work, repeats):
    work()
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class Numpy:
    variants = ("M.T @ P", "(P.T @ M).T", "(P.T @ M).T, whole rows at a time")

    def __init__(self, n, m, r):
        numpy = self.numpy = require("numpy")
        self.version = numpy.__version__
        draw = numpy.random.default_rng(1)
        self.gradient = draw.standard_normal((n, m), dtype=numpy.float32)
        self.residual = numpy.zeros((n, m), dtype=numpy.float32)
        self.output = numpy.zeros((n, m), dtype=numpy.float32)
        self.q = draw.standard_normal((m, r), dtype=numpy.float32)
        self.p = numpy.zeros((n, r), dtype=numpy.float32)

    def step(self, variant):
        numpy = self.numpy
        if variant == 2:
            # What stays in a cache between two operations is not fetched twice.
            for at in range(0, len(self.residual), 256):
                part = self.residual[at : at + 256]
                numpy.add(part, self.gradient[at : at + 256], out=part)
                numpy.matmul(part, self.q, out=self.p[at : at + 256])
        else:
            numpy.add(self.residual, self.gradient, out=self.residual)
            numpy.matmul(self.residual, self.q, out=self.p)
        p, _ = numpy.linalg.qr(self.p)
        q = self.residual.T @ p if variant == 0 else (p.T @ self.residual).T
        if variant == 2:
            for at in range(0, len(self.residual), 256):
                part, out = self.residual[at : at + 256], self.output[at : at + 256]
                numpy.matmul(p[at : at + 256], q.T, out=out)
                numpy.subtract(part, out, out=part)
        else:
            numpy.matmul(p, q.T, out=self.output)
            numpy.subtract(self.residual, self.output, out=self.residual)
        self.q = numpy.linalg.qr(q)[0]


class Torch:
    variants = ("M.t() @ P", "(P.t() @ M).t()", "(P.t() @ M).t(), whole rows at a time", "(P.t() @ M).t(), addmm")

    def __init__(self, n, m, r):
        torch = self.torch = require("torch")
        self.version = torch.__version__
        torch.manual_seed(1)
        torch.set_grad_enabled(False)
        self.gradient = torch.randn(n, m)
        self.residual = torch.zeros(n, m)
        self.output = torch.zeros(n, m)
        self.q = torch.randn(m, r)
        self.p = torch.zeros(n, r)

    def step(self, variant):
        torch = self.torch
        if variant == 2:
            for part, gradient, p in zip(self.residual.split(256), self.gradient.split(256), self.p.split(256)):
                part.add_(gradient)
                torch.mm(part, self.q, out=p)
        else:
            self.residual.add_(self.gradient)
            torch.mm(self.residual, self.q, out=self.p)
        p, _ = torch.linalg.qr(self.p)
        q = self.residual.t() @ p if variant == 0 else (p.t() @ self.residual).t()
        if variant == 2:
            for part, out, p in zip(self.residual.split(256), self.output.split(256), p.split(256)):
                torch.mm(p, q.t(), out=out)
                part.sub_(out)
        elif variant == 3:
            torch.mm(p, q.t(), out=self.output)
            self.residual.addmm_(p, q.t(), alpha=-1)
        else:
            torch.mm(p, q.t(), out=self.output)
            self.residual.sub_(self.output)
        self.q = torch.linalg.qr(q)[0].contiguous()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=("numpy", "torch"), required=True)
    parser.add_argument("--size", type=int, default=1 << 24)
    parser.add_argument("--ranks", default="1,4,8,32", help="with commas between")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()

    # As square as it can be with a power of two as its rows, as ours.
    n = 1 << ((options.size.bit_length() - 1) // 2)
    m = options.size // n
    make = Numpy if options.framework == "numpy" else Torch
    rows = []
    for rank in [int(rank) for rank in options.ranks.split(",")]:
        timed = []
        for variant, label in enumerate(make.variants):
            peer = make(n, m, rank)
            peer.step(variant)
            # What was sent and what was not are the gradient: the residual was zero.
            if float(abs(peer.output + peer.residual - peer.gradient).max()) > 1e-4:
                raise SystemExit(f"{label} loses a part of the gradient")
            seconds = median_seconds(lambda: peer.step(variant), options.repeats)
            row = {"peer": options.framework, "version": peer.version, "op": "powersgd_step", "setting": f"rank {rank}"}
            row |= {"variant": label if variant else "plain", "elements": n * m, "seconds_median": seconds, "best": False}
            timed.append(row | {"gradient_gbps": 4e-9 * n * m / seconds})
        min(timed, key=lambda row: row["seconds_median"])["best"] = True
        rows.extend(timed)
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(rows, file)


if __name__ == "__main__":
    main()
