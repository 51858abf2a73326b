#!/usr/bin/env python3
"""Bucketed QSGD on the CPU with torch: eager and compiled encode, decode and add, and plain copies for context."""

import os
import sys
import time

sys.dont_write_bytecode = True
# Compile in this process: the pool of compiler processes would outlive its use and run beside what is timed.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import common

torch = common.require("torch")


def table(bits):
    """The values of 16 bits of codes (8 bits of 2-bit codes), each entry moved as one wide element."""
    values = torch.tensor(common.lookup_table(bits, 8 if bits == 2 else 16))
    return values.view(torch.complex64 if bits == 8 else torch.complex128)


class Codec:
    """Encodes and decodes up to `block` buckets at a time with scratch that is allocated once."""

    def __init__(self, bits, bucket, block, seed):
        self.bits, self.s = bits, common.levels(bits)
        self.a = torch.empty(block, bucket)
        self.u = torch.empty(block, bucket)
        self.word = torch.empty(block, bucket, dtype=torch.int32)
        self.sign = torch.empty(block, bucket, dtype=torch.int32)
        self.code = torch.empty(block, bucket, dtype=torch.uint8)
        self.draws = torch.empty(block * bucket // 2, dtype=torch.int64)
        self.scale = torch.empty(block, 1)
        self.random = torch.Generator().manual_seed(seed)
        # One lookup replaces unpacking with shifts and masks, which took longer.
        self.table = table(bits)
        self.packed_index = torch.uint8 if bits == 2 else torch.uint16
        self.index = torch.empty(block * bucket * bits // (8 if bits == 2 else 16), dtype=torch.int32)

    def draw(self, u):
        """Fills `u` with uniform multiples of 2^-24 in [0, 1)."""
        # `uniform_` has the same resolution and takes half as long again as 64-bit draws split into two. Both run on
        # one thread, whatever torch's thread count.
        words = self.draws[: u.numel() // 2].random_(generator=self.random).view(torch.int32)
        u.copy_(words.bitwise_and_(0xFFFFFF).view(u.shape)).mul_(2.0**-24)

    def encode(self, x, packed, norms, uniform):
        k = len(x)
        a, word, sign, scale = self.a[:k], self.word[:k], self.sign[:k], self.scale[:k]
        torch.abs(x, out=a)
        torch.amax(a, 1, out=norms)
        torch.clamp(norms.view(-1, 1), min=common.TINY, out=scale)
        scale.reciprocal_().mul_(self.s)
        if uniform is None:
            uniform = self.u[:k]
            self.draw(uniform)
        torch.addcmul(uniform, a, scale, out=a)
        # s + u can round up to s + 1. Never negative, so truncation is floor.
        a.clamp_(max=self.s)
        word.copy_(a)
        # The sign from the float's own bits: `signbit` and `lt` with a boolean result are not vectorised, and
        # neither is float to uint8, so everything goes through int32.
        torch.bitwise_right_shift(x.view(torch.int32), 32 - self.bits, out=sign)
        sign.bitwise_and_(1 << (self.bits - 1))
        word.bitwise_or_(sign)
        # Neighbouring codes are packed inside wider integers, so that no step strides over bytes.
        if self.bits == 8:
            packed.copy_(word)
            return
        code = self.code[:k].copy_(word)
        if self.bits == 4:
            wide = code.view(torch.int16)
            shifted = sign.view(-1).view(torch.int16)[: wide.numel()].view(wide.shape)
            torch.bitwise_right_shift(wide, 4, out=shifted)
            packed.copy_(shifted.bitwise_or_(wide))
        else:
            wide = code.view(torch.int32)
            shifted = sign.view(-1)[: wide.numel()].view(wide.shape)
            torch.bitwise_right_shift(wide, 6, out=shifted)
            wide.bitwise_or_(shifted)
            torch.bitwise_right_shift(wide, 12, out=shifted)
            packed.copy_(shifted.bitwise_or_(wide))

    def decode_add(self, packed, norms, weight, accumulator):
        k = len(norms)
        value, scale = self.a[:k], self.scale[:k]
        words = packed.view(-1).view(self.packed_index)
        index = self.index[: words.numel()].copy_(words)
        torch.index_select(self.table, 0, index, out=value.view(-1).view(self.table.dtype))
        torch.mul(norms.view(-1, 1), weight, out=scale)
        accumulator.addcmul_(value, scale)


class Copier:
    def copy(self, source, target):
        target.copy_(source)


def hashed_uniform(x, seed):
    """Uniforms from a hash of the element's index: cheap integer steps that a compiler fuses and vectorises."""
    h = torch.arange(x.numel(), dtype=torch.int32).view(x.shape) * -1640531527 + seed
    h = (h ^ ((h >> 16) & 0xFFFF)) * 0x7FEB352D
    h = (h ^ ((h >> 15) & 0x1FFFF)) * (0x846CA68B - (1 << 32))
    h = h ^ ((h >> 16) & 0xFFFF)
    return (h & 0xFFFFFF).to(torch.float32) * 2.0**-24


class Compiled:
    """The same operations as plain expressions over the whole gradient, for torch.compile to fuse and to thread."""

    def __init__(self, bits, hashed):
        s = common.levels(bits)
        sign_bit = 1 << (bits - 1)

        def encode(x, uniform, seed, packed, norms):
            a = x.abs()
            norm = a.amax(1, keepdim=True)
            if uniform is None:
                uniform = hashed_uniform(x, seed) if hashed else torch.rand_like(x)
            level = (a * (s / norm.clamp(min=common.TINY)) + uniform).clamp(max=s).to(torch.int32)
            code = (level | ((x.view(torch.int32) >> (32 - bits)) & sign_bit)).to(torch.uint8)
            # Through wider integers: slices of every second code made the compiler compute each code in a strided,
            # scalar loop.
            if bits == 4:
                wide = code.view(torch.int16)
                code = (wide | (wide >> 4)).to(torch.uint8)
            elif bits == 2:
                wide = code.view(torch.int32)
                wide = wide | (wide >> 6)
                code = (wide | (wide >> 12)).to(torch.uint8)
            packed.copy_(code)
            norms.copy_(norm.view(-1))

        def decode_add(packed, norms, weight, accumulator):
            # Every element reads its own byte and shifts its own code out. A lookup, and stacking the codes of a
            # byte, were no faster. The mask matters: a remainder instead makes the loop scalar, nine times as slow.
            per_byte = 8 // bits
            code = packed.to(torch.int32)
            if per_byte > 1:
                shift = (torch.arange(accumulator.shape[1], dtype=torch.int32) & (per_byte - 1)) * bits
                code = (code.repeat_interleave(per_byte, 1) >> shift) & ((1 << bits) - 1)
            value = (code & s).to(torch.float32) * (norms.view(-1, 1) * (weight / s))
            accumulator.add_(torch.where(code >= sign_bit, -value, value))

        self.seed = torch.tensor(1, dtype=torch.int32)
        self.compiled_encode = torch.compile(encode, dynamic=False)
        self.compiled_decode_add = torch.compile(decode_add, dynamic=False)

    def encode(self, x, packed, norms, uniform=None):
        # A new seed every call; a tensor, because a new number would be a new compilation.
        self.seed += 0x3C6EF372
        self.compiled_encode(x, uniform, self.seed, packed, norms)

    def decode_add(self, packed, norms, weight, accumulator):
        self.compiled_decode_add(packed, norms, weight, accumulator)

    def close(self):
        pass


def main():
    options = common.arguments("torch")
    threads = options.threads
    torch.set_num_threads(threads)
    report = common.Report("torch", torch.__version__, options)
    buckets, bucket = options.buckets, options.bucket
    torch.manual_seed(1)
    x = torch.zeros(buckets, bucket)
    x.view(-1)[: options.size] = torch.randn(options.size)
    accumulator = torch.zeros_like(x)
    uniform = torch.empty_like(x)
    Codec(4, bucket, buckets, 2).draw(uniform)
    norms = torch.zeros(buckets)
    weight = 0.125
    order = ("qsgd_encode", "qsgd_encode_predrawn", "qsgd_decode_add")
    skipped = None

    for bits in options.bits:
        packed = torch.zeros(buckets, bucket * bits // 8, dtype=torch.uint8)
        calls = {
            "qsgd_encode": lambda run: run.encode(x, packed, norms),
            "qsgd_encode_predrawn": lambda run: run.encode(x, packed, norms, uniform),
            "qsgd_decode_add": lambda run: run.decode_add(packed, norms, weight, accumulator),
        }
        rows = []

        def measure(op, variant, run, note):
            """Checks both halves, with an all-zero bucket in front, and then times one."""
            kept = x[0].clone()
            x[0] = 0
            calls[op if op != "qsgd_decode_add" else "qsgd_encode"](run)
            accumulator.zero_()
            run.decode_add(packed, norms, 1.0, accumulator)
            common.check_round_trip(f"{op} {variant}", bits, x, packed, norms, accumulator)
            x[0] = kept
            accumulator.zero_()
            run.encode(x, packed, norms)
            taken = common.seconds(lambda: calls[op](run), options.repeats)
            if op == "qsgd_encode_predrawn":
                note = note.split("; ")[0] + "; random numbers not timed"
            elif op == "qsgd_decode_add":
                note = note.split("; ")[0]
            rows.append((op, variant, taken, threads, note))

        # torch.compile first: the Python threads of "eager-pool" set torch's thread count to one for themselves.
        # "compile" draws with torch.rand_like, as a first version would. The generator that becomes is scalar code,
        # so "compile-hash" writes a generator as fusible integer steps; the other two operations are unaffected.
        if not options.no_compile and skipped is None:
            try:
                stock, hashed = Compiled(bits, False), Compiled(bits, True)
                start = time.perf_counter()
                stock.encode(x, packed, norms)
                hashed.encode(x, packed, norms)
                stock.encode(x, packed, norms, uniform)
                stock.decode_add(packed, norms, 1.0, accumulator)
                stock.decode_add(packed, norms, weight, accumulator)
                compiling = f"fused, compiled beforehand ({time.perf_counter() - start:.1f} s for all)"
            except Exception as error:
                # No C++ compiler, no support for this Python, a missing header: the reason is the first line.
                skipped = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
            else:
                for op in order:
                    measure(op, "compile", stock, f"{compiling}; torch.rand_like inside")
                measure("qsgd_encode", "compile-hash", hashed, f"{compiling}; hash of the index, drawn inside")

        # "eager-whole" is one pass a step over the whole gradient and "eager-blocks" keeps all steps of a block in
        # cache; torch shares each step out to its threads, except that it draws random numbers on one. "eager-pool"
        # gives each of as many Python threads its own blocks and generator, so that drawing runs in parallel too.
        modes = ["eager-whole", "eager-blocks"] + (["eager-pool"] if threads > 1 else [])
        for variant in modes:
            workers = threads if variant == "eager-pool" else 1

            def make(block):
                start_thread = (lambda: torch.set_num_threads(1)) if workers > 1 else None
                return common.Blocks(
                    buckets, block, workers, lambda size, i: Codec(bits, bucket, size, 100 + i), start_thread
                )

            for op in order:
                if variant == "eager-whole":
                    run = make(buckets)
                else:
                    # A block on torch's own threads is split among them, step after step in the same way.
                    run = common.fastest_block(make, calls[op], bucket, 1 if workers > 1 else threads)
                size = "whole array a step" if variant == "eager-whole" else f"{run.block * bucket} elements a block"
                measure(op, variant, run, f"{size}; MT19937, drawn inside")
                run.close()
            torch.set_num_threads(threads)
        for row in sorted(rows, key=lambda row: order.index(row[0])):
            report.add(*row, bits=bits)

    if options.no_compile:
        skipped = "--no-compile"
    run = common.Blocks(buckets, buckets, 1, lambda size, i: Copier())
    taken = common.seconds(lambda: run.copy(x, accumulator), options.repeats)
    report.add("copy", "eager-whole", taken, threads, "copy_")
    report.finish()
    if skipped:
        print(f"torch.compile rows skipped: {skipped}")


if __name__ == "__main__":
    main()
