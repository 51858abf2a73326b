"""Times bucketed QSGD as one Triton kernel each way: what a user of torch writes who wants it fast.

    python3 gpu_triton.py --device cuda --sizes 16777216,67108864 --seconds 60

The format and the check are those of gpu_quantize.py: the largest magnitude of every 512 elements, levels of it rounded
stochastically with draws of tl.rand, sign and magnitude in 4 or 8 bits, packed. A bucket is read once. How many buckets a
program takes is tuned.
"""

import sys

from gpu_common import EXIT_NOT_INSTALLED, Clock, Torch, note, options, require, row
from gpu_quantize import BUCKET, TINY, check

# Loaded here, since kernels are decorated where they are defined.
triton = require("triton")
tl = require("triton.language")

TUNED = dict(
    configs=[triton.Config({"ROWS": rows}, num_warps=warps) for rows, warps in ((1, 1), (1, 4), (4, 4), (8, 8))], key=["n", "BITS"]
)


@triton.autotune(**TUNED)
@triton.jit
def encode_kernel(x_ptr, codes_ptr, norms_ptr, seed, n, TINY: tl.constexpr, BITS: tl.constexpr, BUCKET: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = rows[:, None] * BUCKET + tl.arange(0, BUCKET)[None, :]
    x = tl.load(x_ptr + at).to(tl.float32)
    magnitude = tl.abs(x)
    norm = tl.max(magnitude, 1)
    most: tl.constexpr = (1 << (BITS - 1)) - 1
    scale = most / tl.maximum(norm, TINY)
    level = tl.minimum(tl.floor(magnitude * scale[:, None] + tl.rand(seed, at)), most)
    code = level.to(tl.uint8) | ((x < 0).to(tl.uint8) << (BITS - 1))
    tl.store(norms_ptr + rows, norm)
    if BITS == 4:
        low, high = tl.split(tl.reshape(code, (ROWS, BUCKET // 2, 2)))
        at = rows[:, None] * (BUCKET // 2) + tl.arange(0, BUCKET // 2)[None, :]
        tl.store(codes_ptr + at, low | (high << 4))
    else:
        tl.store(codes_ptr + at, code)


@triton.autotune(**TUNED, restore_value=["out_ptr"])
@triton.jit
def decode_kernel(codes_ptr, norms_ptr, out_ptr, n, ADD: tl.constexpr, BITS: tl.constexpr, BUCKET: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if BITS == 4:
        at = rows[:, None] * (BUCKET // 2) + tl.arange(0, BUCKET // 2)[None, :]
        both = tl.load(codes_ptr + at)
        code = tl.reshape(tl.join(both & 15, both >> 4), (ROWS, BUCKET))
    else:
        at = rows[:, None] * BUCKET + tl.arange(0, BUCKET)[None, :]
        code = tl.load(codes_ptr + at)
    most: tl.constexpr = (1 << (BITS - 1)) - 1
    step = tl.load(norms_ptr + rows) / most
    value = (code & most).to(tl.float32) * step[:, None]
    value = tl.where((code >> (BITS - 1)) > 0, -value, value)
    at = rows[:, None] * BUCKET + tl.arange(0, BUCKET)[None, :]
    if ADD:
        value = tl.load(out_ptr + at) + 0.125 * value
    tl.store(out_ptr + at, value)


def grid(n):
    return lambda meta: (n // BUCKET // meta["ROWS"],)


def main():
    asked = options(__doc__.splitlines()[0])
    if asked.device != "cuda":
        note("Triton's kernels run on a GPU alone")
        sys.exit(EXIT_NOT_INSTALLED)
    t = Torch(asked.device)
    torch = t.torch
    clock = Clock(asked.seconds, len(asked.sizes) * 8)
    for n in asked.sizes:
        n = n // (8 * BUCKET) * (8 * BUCKET)
        for dtype in ("f32", "bf16"):
            try:
                measure(t, clock, n, dtype)
            except torch.OutOfMemoryError as error:
                note(f"{n} elements of {dtype} do not fit:", " ".join(str(error).split())[:200])


def measure(t, clock, n, dtype):
    torch = t.torch
    xs = [t.gradient(n, dtype) for _ in range(t.sets(n * (4 if dtype == "f32" else 2), n * 14))]
    for bits in (4, 8):
        said = dict(
            peer="Triton", version=triton.__version__, device=t.device, codec="QSGD", setting=f"{bits} bit / {BUCKET}",
            dtype=dtype, elements=n, clock=t.clock,
        )  # fmt: skip
        codes = [torch.empty(n // BUCKET, BUCKET * bits // 8, dtype=torch.uint8, device=t.device) for _ in xs]
        norms = [torch.empty(n // BUCKET, 1, device=t.device) for _ in xs]
        outs = [torch.zeros(n, device=t.device) for _ in xs]

        def encode(i):
            encode_kernel[grid(n)](xs[i], codes[i], norms[i], 1, n, TINY, bits, BUCKET)

        def decode(i, add):
            decode_kernel[grid(n)](codes[i], norms[i], outs[i], n, add, bits, BUCKET)

        for i in range(len(xs)):
            encode(i)
        check(torch, xs[0], codes[0], norms[0], bits)
        works = [lambda i=i: encode(i) for i in range(len(xs))]
        row(t.time(works, clock.slice()), op="encode", note="one kernel, tl.rand inside", **said)
        if dtype == "f32":
            works = [lambda i=i: decode(i, False) for i in range(len(xs))]
            row(t.time(works, clock.slice()), op="decode", note="one kernel", **said)
            works = [lambda i=i: decode(i, True) for i in range(len(xs))]
            row(t.time(works, clock.slice()), op="decode-add", note="one kernel", **said)
        del codes, norms, outs
    del xs


if __name__ == "__main__":
    main()
