"""Times top-k by magnitude with torch.topk, and with cupy.argpartition where CuPy is installed.

    python3 gpu_topk.py --device cuda --sizes 16777216,67108864 --seconds 60

The work is Gradwire's: from a signed gradient to the indices and the values of its k largest magnitudes; with feedback, the
residual is added before and keeps what is not selected; decode-add puts weighted entries onto an f32 tensor.
"""

from gpu_common import PARTS, Clock, Torch, note, options, row, sample, wrong


def check(torch, x, values, indices, k):
    """The values are those at the indices, which are all different, and none that was left is larger."""
    if indices.numel() != k or torch.unique(indices).numel() != k:
        wrong(f"{indices.numel()} indices, {torch.unique(indices).numel()} different, where {k} were asked for")
    if not torch.equal(x[indices], values):
        wrong("the values are not those of the gradient")
    left = x.abs().clone()
    left[indices] = 0
    if left.max() > values.abs().min():
        wrong("a larger entry was left")


def topk(t, clock, n, dtype, part, setting):
    torch = t.torch
    k = int(-(-n * part // 1))
    wide = 4 if dtype == "f32" else 2
    said = dict(
        version=torch.__version__, device=t.device, codec="top-k", setting=setting, dtype=dtype, elements=n, clock=t.clock
    )
    sets = t.sets(n * wide, n * (2 * wide + 4) + 12 * k)
    xs = [t.gradient(n, dtype) for _ in range(sets)]
    magnitudes = [x.abs() for x in xs]

    def encode(x):
        _, indices = torch.topk(x.abs(), k, sorted=False)
        return x[indices], indices

    values, indices = encode(xs[0])
    check(torch, xs[0], values, indices, k)
    timing = t.time([lambda x=x: encode(x) for x in xs], clock.slice())
    row(timing, peer="torch.topk", op="encode", note="abs, topk unsorted, gather", **said)
    works = [lambda m=m: torch.topk(m, k, sorted=False) for m in magnitudes]
    row(t.time(works, clock.slice()), peer="torch.topk", op="encode", note="topk alone, given the magnitudes", **said)
    del magnitudes, works

    residuals = [torch.zeros(n, device=t.device) for _ in xs]

    def feedback(x, residual):
        residual += x
        _, indices = torch.topk(residual.abs(), k, sorted=False)
        values = residual[indices]
        residual[indices] = 0
        return values, indices

    works = [lambda x=x, r=r: feedback(x, r) for x, r in zip(xs, residuals)]
    row(t.time(works, clock.slice()), peer="torch.topk", op="encode + feedback", note="add, abs, topk, gather, scatter", **said)
    if dtype == "f32":
        works = [lambda r=r: r.index_add_(0, indices, values, alpha=0.125) for r in residuals]
        row(t.time(works, clock.slice()), peer="torch index_add_", op="decode-add", note="entries in topk's order", **said)


def cupy(t, clock, n, part, setting):
    """CuPy's own clock and memory, on the same data."""
    try:
        import cupy as cp
    except Exception as error:
        note("cupy is not timed:", " ".join(str(error).split())[:200])
        return False
    k = int(-(-n * part // 1))
    xs = [cp.asarray(t.gradient(n).cpu().numpy()) for _ in range(t.sets(4 * n, 24 * n))]

    def encode(x):
        indices = cp.argpartition(cp.abs(x), n - k)[n - k :]
        return x[indices], indices

    values, indices = encode(xs[0])
    check(t.torch, t.torch.as_tensor(xs[0].get()), t.torch.as_tensor(values.get()), t.torch.as_tensor(indices.get()), k)

    def turns(repeats):
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        for _ in range(repeats):
            for x in xs:
                encode(x)
        stop.record()
        stop.synchronize()
        return cp.cuda.get_elapsed_time(start, stop) * 1e-3

    row(
        sample(turns, len(xs), clock.slice()),
        peer="cupy.argpartition", version=cp.__version__, device=t.device, codec="top-k", setting=setting, op="encode",
        dtype="f32", elements=n, clock="cuda events", note="abs, argpartition, gather",
    )  # fmt: skip
    return True


def main():
    asked = options(__doc__.splitlines()[0])
    t = Torch(asked.device)
    on_gpu = asked.device == "cuda"
    clock = Clock(asked.seconds, len(asked.sizes) * len(PARTS) * 8)
    with_cupy = on_gpu
    for n in asked.sizes:
        for dtype in ("f32", "bf16"):
            for part, setting in PARTS:
                try:
                    topk(t, clock, n, dtype, part, setting)
                except t.torch.OutOfMemoryError as error:
                    note(f"{n} elements of {dtype} do not fit:", " ".join(str(error).split())[:200])
        # It sorts, which takes many times as long.
        if with_cupy and n <= 1 << 26:
            with_cupy = all(cupy(t, clock, n, part, setting) for part, setting in PARTS)


if __name__ == "__main__":
    main()
