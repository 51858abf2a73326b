#!/usr/bin/env python3
"""Bucketed QSGD on the CPU with numpy: encode, decode and add, and plain copies for context."""

import sys

sys.dont_write_bytecode = True

import common

np = common.require("numpy")


class Codec:
    """Encodes and decodes up to `block` buckets at a time with scratch that is allocated once.

    Every step writes into its own scratch with `out=`: a temporary a step would cost page faults or allocator time.
    """

    def __init__(self, bits, bucket, block, seed):
        self.bits, self.s = bits, common.levels(bits)
        shape = (block, bucket)
        self.a = np.empty(shape, np.float32)
        self.u = np.empty(shape, np.float32)
        self.level = np.empty(shape, np.uint8)
        self.sign = np.empty(shape, np.uint8)
        # An operand array, for `np.minimum` with a scalar is an order of magnitude slower than with an array.
        self.top = np.full(shape, self.s, np.uint8)
        self.starts = np.arange(0, block * bucket, bucket)
        self.scale = np.empty((block, 1), np.float32)
        # The fastest of numpy's bit generators where this was measured; numpy's default, PCG64, is close.
        self.random = np.random.Generator(np.random.SFC64(seed))
        # One lookup turns 16 bits of codes (8 bits of 2-bit codes) into the 4 or 2 floats they mean, moved as one
        # wide element. Unpacking with shifts and masks took as long, with seven passes more.
        self.index = np.uint8 if bits == 2 else np.uint16
        table = np.array(common.lookup_table(bits, 8 if bits == 2 else 16), np.float32)
        self.wide = np.complex64 if bits == 8 else np.complex128
        self.table = table.view(self.wide)

    def draw(self, u):
        """Fills `u` with uniform multiples of 2^-24 in [0, 1)."""
        # Two uniforms from one 64-bit draw: `Generator.random(dtype=float32)` has the same resolution and takes half
        # as long again. `random_raw` is a little faster but keeps the interpreter lock, so threads would not help.
        words = self.random.integers(0, 2**64, (u.size + 1) // 2, np.uint64).view(np.uint32)[: u.size]
        words = words.reshape(u.shape)
        np.right_shift(words, 8, out=words)
        np.copyto(u, words.view(np.int32))
        np.multiply(u, np.float32(2.0**-24), out=u)

    def encode(self, x, packed, norms, uniform):
        k = len(x)
        a, level, sign = self.a[:k], self.level[:k], self.sign[:k]
        np.abs(x, out=a)
        # Non-negative floats sort as their bit patterns do, and an integer maximum has no NaN to look for.
        np.maximum.reduceat(a.reshape(-1).view(np.int32), self.starts[:k], out=norms.view(np.int32))
        scale = self.scale[:k]
        np.maximum(norms[:, None], np.float32(common.TINY), out=scale)
        np.divide(np.float32(self.s), scale, out=scale)
        np.multiply(a, scale, out=a)
        if uniform is None:
            uniform = self.u[:k]
            self.draw(uniform)
        np.add(a, uniform, out=a)
        # Never negative, so truncation is floor. s + u can round up to s + 1, hence the minimum, on bytes because
        # that is a quarter of the memory.
        np.copyto(level, a, casting="unsafe")
        np.minimum(level, self.top[:k], out=level)
        np.signbit(x, out=sign.view(np.bool_))
        np.multiply(sign, np.uint8(1 << (self.bits - 1)), out=sign)
        # Neighbouring codes are packed inside wider integers, so that no step strides over bytes. `sign` becomes
        # scratch once it is merged.
        if self.bits == 8:
            np.bitwise_or(level, sign, out=packed)
            return
        np.bitwise_or(level, sign, out=level)
        wide = np.uint16 if self.bits == 4 else np.uint32
        codes, shifted = level.view(wide), sign.view(wide)
        if self.bits == 4:
            np.right_shift(codes, 4, out=shifted)
            np.bitwise_or(codes, shifted, out=shifted)
        else:
            np.right_shift(codes, 6, out=shifted)
            np.bitwise_or(codes, shifted, out=codes)
            np.right_shift(codes, 12, out=shifted)
            np.bitwise_or(codes, shifted, out=shifted)
        np.copyto(packed, shifted, casting="unsafe")

    def decode_add(self, packed, norms, weight, accumulator):
        k = len(norms)
        value, scale = self.a[:k], self.scale[:k]
        # No index is out of range; mode="clip" spares the copy that mode="raise" makes of `out`.
        np.take(self.table, packed.view(self.index), out=value.view(self.wide), mode="clip")
        np.multiply(norms[:, None], np.float32(weight), out=scale)
        np.multiply(value, scale, out=value)
        np.add(accumulator, value, out=accumulator)


class Copier:
    def copy(self, source, target):
        np.copyto(target, source)


def main():
    options = common.arguments("numpy")
    # 0 / 0 must not pass because a NaN happens to be cast to 0 on some processors.
    np.seterr(divide="raise", invalid="raise")
    report = common.Report("numpy", np.__version__, options)
    buckets, bucket = options.buckets, options.bucket
    x = np.zeros((buckets, bucket), np.float32)
    flat = x.reshape(-1)[: options.size]
    np.random.default_rng(1).standard_normal(dtype=np.float32, out=flat)
    accumulator = np.zeros_like(x)
    uniform = np.empty_like(x)
    Codec(4, bucket, 1, 2).draw(uniform)
    norms = np.zeros(buckets, np.float32)
    weight = 0.125

    # numpy runs an operation on one thread. "whole" is one pass a step over the whole gradient, "blocks" keeps all
    # steps of a block in cache, and with more threads the blocks are shared out: numpy lets go of the interpreter
    # lock, so this is a few lines for a user and by far the largest gain on a machine with many cores.
    modes = [("whole", 1), ("blocks", 1)]
    if options.threads > 1:
        modes.append(("blocks", options.threads))

    for bits in options.bits:
        packed = np.zeros((buckets, bucket * bits // 8), np.uint8)
        encodes = {
            "qsgd_encode": lambda run: run.encode(x, packed, norms),
            "qsgd_encode_predrawn": lambda run: run.encode(x, packed, norms, uniform),
        }
        rows = []
        for variant, threads in modes:

            def make(block):
                return common.Blocks(
                    buckets, block, threads, lambda size, i: Codec(bits, bucket, size, 100 + i)
                )

            def pick(call):
                return make(buckets) if variant == "whole" else common.fastest_block(make, call, bucket)

            def decode_add(run):
                run.decode_add(packed, norms, weight, accumulator)

            for op, call in {**encodes, "qsgd_decode_add": decode_add}.items():
                run = pick(call)
                # Both halves are checked for every row, with an all-zero bucket in front.
                kept = x[0].copy()
                x[0] = 0
                encodes.get(op, encodes["qsgd_encode"])(run)
                accumulator[:] = 0
                run.decode_add(packed, norms, 1.0, accumulator)
                common.check_round_trip(f"{op} {variant}", bits, x, packed, norms, accumulator)
                x[0] = kept
                accumulator[:] = 0
                run.encode(x, packed, norms)
                taken = common.seconds(lambda: call(run), options.repeats)
                run.close()
                note = "whole array a step" if variant == "whole" else f"{run.block * bucket} elements a block"
                if op == "qsgd_encode":
                    note += "; SFC64, drawn inside"
                elif op == "qsgd_encode_predrawn":
                    note += "; random numbers not timed"
                rows.append((op, variant, taken, threads, note))
        for row in sorted(rows, key=lambda row: ("encode", "encode_predrawn", "decode_add").index(row[0][5:])):
            report.add(*row, bits=bits)

    for threads in sorted({1, options.threads}):
        run = common.Blocks(buckets, buckets, threads, lambda size, i: Copier())
        taken = common.seconds(lambda: run.copy(x, accumulator), options.repeats)
        run.close()
        report.add("copy", "whole" if threads == 1 else "blocks", taken, threads, "np.copyto")
    report.finish()


if __name__ == "__main__":
    main()
