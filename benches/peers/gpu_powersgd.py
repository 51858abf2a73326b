"""Times a step of PowerSGD as torch's communication hook does its mathematics, without the collectives.

    python3 gpu_powersgd.py --device cuda --sizes 16777216 --seconds 60

A step: M = gradient + residual; P = M Q; P made orthonormal; Q = M^T P; output = P Q^T; residual = M - output. Buffers are
allocated beforehand where the hook reuses them. The matrices are the largest square ones of the sizes, 4096 x 4096 for 2^24.
"""

from gpu_common import Clock, Torch, note, options, row, wrong

RANKS = (1, 4, 8, 32)


def step(torch, gradient, residual, p, q, output):
    residual.add_(gradient)
    torch.matmul(residual, q, out=p)
    ortho, _ = torch.linalg.qr(p)
    torch.matmul(residual.t(), ortho, out=q)
    torch.matmul(ortho, q.t(), out=output)
    residual.sub_(output)


def main():
    asked = options(__doc__.splitlines()[0])
    t = Torch(asked.device)
    torch = t.torch
    clock = Clock(asked.seconds, len(asked.sizes) * len(RANKS))
    # As Gradwire's arithmetic is: no tf32.
    torch.backends.cuda.matmul.allow_tf32 = False
    for size in asked.sizes:
        side = int(size**0.5)
        n = side * side
        for rank in RANKS:
            try:
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
                row(
                    timing, peer="torch, the hook's operations", version=torch.__version__, device=t.device,
                    codec="PowerSGD", setting=f"rank {rank}", op=f"step {side}x{side}", dtype="f32", elements=n,
                    clock=t.clock, note="error feedback, warm start, QR, no tf32",
                )  # fmt: skip
            except torch.OutOfMemoryError as error:
                note(f"{side} x {side} does not fit:", " ".join(str(error).split())[:200])


if __name__ == "__main__":
    main()
