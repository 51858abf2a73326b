"""Times bucketed QSGD written in torch, eager and compiled, and bitsandbytes' blockwise quantization.

    python3 gpu_quantize.py --device cuda --sizes 16777216,67108864 --seconds 60

QSGD is Gradwire's: the largest magnitude of every 512 elements, levels of it rounded stochastically with the draws made inside
the timed region, sign and magnitude in 4 or 8 bits, packed. bitsandbytes does something else of the same shape, as its rows say:
it rounds to the nearest of 16 or 256 values, and draws nothing.
"""

from gpu_common import Clock, Torch, note, options, row, wrong

BUCKET = 512
TINY = 2.0**-120


def encode(torch, x, bits):
    """Codes and norms of whole buckets."""
    s = (1 << (bits - 1)) - 1
    x = x.view(-1, BUCKET).float()
    magnitude = x.abs()
    norms = magnitude.amax(1, keepdim=True)
    scale = s / norms.clamp_min(TINY)
    levels = (magnitude * scale + torch.rand_like(x)).floor().clamp_max(s)
    codes = levels.to(torch.uint8) | ((x < 0).to(torch.uint8) << (bits - 1))
    if bits == 4:
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return codes, norms


def decode(torch, codes, norms, bits):
    s = (1 << (bits - 1)) - 1
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), 2).view(codes.shape[0], BUCKET)
    values = (codes & s).float() * (norms / s)
    return torch.where((codes >> (bits - 1)) > 0, -values, values).view(-1)


def decode_add(torch, codes, norms, bits, out):
    return out.add_(decode(torch, codes, norms, bits), alpha=0.125)


def check(torch, x, codes, norms, bits):
    s = (1 << (bits - 1)) - 1
    if tuple(codes.shape) != (x.numel() // BUCKET, BUCKET * bits // 8):
        wrong(f"codes of the shape {tuple(codes.shape)}")
    error = (decode(torch, codes, norms, bits) - x.float()).view(-1, BUCKET)
    if not (error.abs() <= norms * ((1 + 1e-5) / s)).all():
        wrong("an error is more than a level")
    if error.mean().abs() > 6 * float(norms.max()) / (2 * s) / x.numel() ** 0.5:
        wrong("the rounding is biased")


def qsgd(t, clock, n, dtype, bits, how, forms):
    torch = t.torch
    enc, dec, add = forms
    sets = t.sets(n * (4 if dtype == "f32" else 2), n * 18)
    xs = [t.gradient(n, dtype) for _ in range(sets)]
    said = dict(
        peer=f"torch, {how}", version=torch.__version__, device=t.device, codec="QSGD", setting=f"{bits} bit / {BUCKET}",
        dtype=dtype, elements=n, clock=t.clock,
    )  # fmt: skip
    sent = [enc(torch, x, bits) for x in xs]
    check(torch, xs[0], *sent[0], bits)
    draws = "drawn by torch's Philox inside"
    row(t.time([lambda x=x: enc(torch, x, bits) for x in xs], clock.slice()), op="encode", note=draws, **said)
    if dtype == "f32":
        works = [lambda c=c, m=m: dec(torch, c, m, bits) for c, m in sent]
        row(t.time(works, clock.slice()), op="decode", note="", **said)
        works = [lambda c=c, m=m, x=x: add(torch, c, m, bits, x) for (c, m), x in zip(sent, xs)]
        row(t.time(works, clock.slice()), op="decode-add", note="", **said)


def compiled(t):
    """The same through torch.compile, tried once; None where that does not work."""
    torch = t.torch
    try:
        forms = [torch.compile(f, dynamic=False) for f in (encode, decode, decode_add)]
        x = t.gradient(8 * BUCKET)
        codes, norms = forms[0](torch, x, 4)
        forms[1](torch, codes, norms, 4)
        forms[2](torch, codes, norms, 4, x)
        return forms
    except Exception as error:
        note("torch.compile is not timed:", " ".join(str(error).split())[:200])
        return None


def bitsandbytes(t, clock, n, dtype):
    try:
        import bitsandbytes
        from bitsandbytes import functional
    except Exception as error:
        note("bitsandbytes is not timed:", " ".join(str(error).split())[:200])
        return False
    said = dict(
        peer="bitsandbytes", version=bitsandbytes.__version__, device=t.device, codec="QSGD", dtype=dtype, elements=n,
        clock=t.clock,
    )  # fmt: skip
    xs = [t.gradient(n, dtype) for _ in range(t.sets(n * (4 if dtype == "f32" else 2), n * 12))]
    nearest = "to the nearest of {} values; no draws"
    sent = [functional.quantize_blockwise(x, blocksize=BUCKET) for x in xs]
    if not (functional.dequantize_blockwise(*sent[0]) - xs[0]).abs().max() <= 0.05 * xs[0].abs().max():
        wrong("bitsandbytes does not give back what it was given")
    works = [lambda x=x: functional.quantize_blockwise(x, blocksize=BUCKET) for x in xs]
    row(t.time(works, clock.slice()), setting="8 bit / 512", op="encode", note=nearest.format(256), **said)
    if dtype == "f32":
        works = [lambda c=c, s=s: functional.dequantize_blockwise(c, s) for c, s in sent]
        row(t.time(works, clock.slice()), setting="8 bit / 512", op="decode", note="", **said)
    works = [lambda x=x: functional.quantize_4bit(x, blocksize=BUCKET, quant_type="fp4") for x in xs]
    row(t.time(works, clock.slice()), setting="4 bit / 512", op="encode", note=nearest.format(16), **said)
    return True


def main():
    asked = options(__doc__.splitlines()[0])
    t = Torch(asked.device)
    clock = Clock(asked.seconds, len(asked.sizes) * 20)
    forms = {"eager": (encode, decode, decode_add)}
    fast = compiled(t)
    if fast:
        forms["compiled"] = fast
    with_bitsandbytes = True
    for n in asked.sizes:
        n = n // BUCKET * BUCKET
        for dtype in ("f32", "bf16"):
            try:
                for how, form in forms.items():
                    for bits in (4, 8):
                        qsgd(t, clock, n, dtype, bits, how, form)
                with_bitsandbytes = with_bitsandbytes and bitsandbytes(t, clock, n, dtype)
            except t.torch.OutOfMemoryError as error:
                note(f"{n} elements of {dtype} do not fit:", " ".join(str(error).split())[:200])


if __name__ == "__main__":
    main()
