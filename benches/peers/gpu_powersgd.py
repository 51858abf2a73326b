"""Times a step of PowerSGD as torch's communication hook does its mathematics, without the collectives.

    python3 gpu_powersgd.py --device cuda --sizes 16777216,25557032 --seconds 60

A step: M = gradient + residual; P = M Q; P made orthonormal; Q = M^T P; output = P Q^T; residual = M - output. Buffers are
allocated beforehand where the hook reuses them. The matrices are the largest square ones of the sizes, 4096 x 4096 for 2^24;
a size that is a model's in MODELS stands for all of its tensors, which go through the hook's own order of operations, once with
a call for each matrix, as it does by default, and once with a call for all matrices of one shape.
"""

from collections import defaultdict

from gpu_common import Clock, Torch, note, options, row, wrong

RANKS = (1, 4, 8, 32)
MODEL_RANK = 4
# The hook compresses a matrix where that makes it smaller by more than this.
LEAST_COMPRESSION = 2


def resnet50():
    """The shapes of its 161 tensors, matrices as (first dimension, product of the others), vectors as (n,)."""
    shapes = [(64, 147), (64,), (64,)]
    before = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            for out, into in ((width, before), (width, 9 * width), (4 * width, width)):
                shapes += [(out, into), (out,), (out,)]
            if block == 0:
                shapes += [(4 * width, before), (4 * width,), (4 * width,)]
            before = 4 * width
    return shapes + [(1000, 2048), (1000,)]


def transformer(layers, width):
    norm = [(width,), (width,)]
    attention = [(3 * width, width), (3 * width,), (width, width), (width,)]
    hidden = [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return (norm + attention + norm + hidden) * layers


# By the number of their elements, which is how the report asks for them.
MODELS = {
    25557032: ("ResNet-50", resnet50()),
    1259622400: ("100 layers of 1024", transformer(100, 1024)),
}


def step(torch, gradient, residual, p, q, output):
    residual.add_(gradient)
    torch.matmul(residual, q, out=p)
    ortho, _ = torch.linalg.qr(p)
    torch.matmul(residual.t(), ortho, out=q)
    torch.matmul(ortho, q.t(), out=output)
    residual.sub_(output)


class Model:
    """A model's gradients in one bucket, and the hook's operations on them. The bucket holds the output afterwards; with the
    residual that is the gradient again, so that every step has the same M."""

    def __init__(self, t, shapes, rank, batched):
        torch = self.torch = t.torch
        self.batched = batched
        sizes = [n if not rest else n * rest[0] for n, *rest in shapes]
        self.bucket = t.gradient(sum(sizes))
        self.residual = torch.zeros_like(self.bucket)
        self.plain, groups = [], defaultdict(list)
        for shape, part in zip(shapes, self.bucket.split(sizes)):
            if len(shape) == 2 and sum(shape) * rank * LEAST_COMPRESSION < part.numel():
                groups[shape].append(part.view(shape))
            else:
                self.plain.append(part)
        # A call's matrices: all of a shape, or one.
        self.calls = [ms for all_ms in groups.values() for ms in ([all_ms] if batched else [[m] for m in all_ms])]
        new = lambda ms, side: torch.randn(len(ms), ms[0].shape[side], rank, device=t.device)  # noqa: E731
        self.ps = [new(ms, 0) for ms in self.calls]
        self.qs = [new(ms, 1) for ms in self.calls]

    def orthogonalize(self, factors):
        for factor in factors:
            self.torch.linalg.qr(factor, out=(factor, factor.new_empty(len(factor), factor.shape[2], factor.shape[2])))

    def step(self):
        torch = self.torch
        self.bucket.add_(self.residual)
        before = self.bucket.clone()
        sent = torch.cat(self.plain)
        matrices = [torch.stack(ms) if len(ms) > 1 else ms[0].unsqueeze(0) for ms in self.calls]
        self.orthogonalize(self.qs)
        for m, p, q in zip(matrices, self.ps, self.qs):
            torch.bmm(m, q, out=p)
        for part, mean in zip(self.plain, sent.split([part.numel() for part in self.plain])):
            part.copy_(mean)
        self.orthogonalize(self.ps)
        for m, p, q in zip(matrices, self.ps, self.qs):
            torch.bmm(m.transpose(1, 2), p, out=q)
        for m, p, q, ms in zip(matrices, self.ps, self.qs, self.calls):
            torch.bmm(p, q.transpose(1, 2), out=m)
            if len(ms) > 1:
                for original, one in zip(ms, m):
                    original.copy_(one)
        torch.sub(before, self.bucket, out=self.residual)


def time_square(t, clock, size, rank):
    torch, side = t.torch, int(size**0.5)
    n = side * side
    sets = []
    for _ in range(t.sets(20 * n, 12 * n)):
        new = [t.gradient(n).view(side, side), torch.zeros(side, side, device=t.device)]
        new += [torch.zeros(side, rank, device=t.device), torch.randn(side, rank, device=t.device)]
        sets.append(new + [torch.zeros(side, side, device=t.device)])
    gradient, residual, _, _, output = sets[0]
    step(torch, *sets[0])
    lost = (gradient - residual - output).norm() / gradient.norm()
    if not lost < 1e-5:
        wrong(f"output and residual are not the gradient: {float(lost)}")
    timing = t.time([lambda s=s: step(torch, *s) for s in sets], clock.slice())
    show(t, timing, rank, f"{side} x {side}", n, "error feedback, warm start, one QR a step where the hook has two, no tf32")


def time_model(t, clock, size, batched):
    name, shapes = MODELS[size]
    sets = [Model(t, shapes, MODEL_RANK, batched) for _ in range(t.sets(20 * size, 20 * size))]
    model = sets[0]
    # The difference is made in place: a model may be large.
    left = model.bucket.clone()
    whole = float(left.norm())
    model.step()
    left.sub_(model.bucket).sub_(model.residual)
    if not float(left.norm()) < 1e-5 * whole:
        wrong(f"{name}: output and residual are not the gradient: {float(left.norm()) / whole}")
    del left
    timing = t.time([one.step for one in sets], clock.slice())
    calls = "a call for all matrices of one shape" if batched else "a call a matrix, the default"
    what = f"{calls}; error feedback, warm start, two QR a matrix, no tf32, no synchronisation"
    show(t, timing, MODEL_RANK, name, size, what)


def show(t, timing, rank, what, elements, words):
    row(
        timing, peer="torch, the hook's operations", version=t.torch.__version__, device=t.device, codec="PowerSGD",
        setting=f"rank {rank}, {what}", op="step with feedback", dtype="f32", elements=elements, clock=t.clock, note=words,
    )  # fmt: skip


def main():
    asked = options(__doc__.splitlines()[0])
    t = Torch(asked.device)
    works = []
    for size in asked.sizes:
        if size in MODELS:
            works += [(time_model, size, batched) for batched in (False, True)]
        else:
            works += [(time_square, size, rank) for rank in RANKS]
    clock = Clock(asked.seconds, len(works))
    # As Gradwire's arithmetic is: no tf32.
    t.torch.backends.cuda.matmul.allow_tf32 = False
    for work, size, how in works:
        try:
            work(t, clock, size, how)
        except t.torch.OutOfMemoryError as error:
            note(f"{size} elements do not fit:", " ".join(str(error).split())[:200])


if __name__ == "__main__":
    main()
