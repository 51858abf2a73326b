"""What the peer scripts share: options, work splitting, timing, checks and the report.

Nothing here imports numpy or torch, so that a missing framework is reported as such.
"""

import argparse
import importlib
import json
import math
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

EXIT_NOT_INSTALLED = 3

# The smallest norm a scale is computed for. It stands in for the norm of an all-zero bucket, whose values times any
# finite scale are zero, and 127 / 2^-120 is still finite in f32. Buckets whose largest magnitude is below it and
# not zero are outside what is timed here.
TINY = 2.0**-120

# Elements in a block handed to one core. A block needs about 16 to 20 bytes of scratch an element, so these lie
# from well inside a private cache to somewhere in the shared one; each script probes them and keeps the fastest.
BLOCKS = (1 << 14, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20)


def require(module):
    """Imports `module`, or ends the process with EXIT_NOT_INSTALLED and one line."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            print(f"{module} is not installed for {sys.executable}: pip install {module}", file=sys.stderr)
        else:
            print(f"{module} does not import: {error}", file=sys.stderr)
    except Exception as error:  # A broken installation raises anything from OSError to ValueError.
        reason = " ".join(str(error).split())[:200]
        print(f"{module} does not import: {type(error).__name__}: {reason}", file=sys.stderr)
    sys.exit(EXIT_NOT_INSTALLED)


def cpu_count():
    """The processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _bucket(text):
    value = int(text)
    if value < 8 or value % 8:
        raise argparse.ArgumentTypeError("must be a positive multiple of 8")
    return value


def _bits(text):
    values = [int(part) for part in text.split(",")]
    if any(value not in (2, 4, 8) for value in values):
        raise argparse.ArgumentTypeError("must be 2, 4 or 8, or a comma-separated list of these")
    return list(dict.fromkeys(values))


def arguments(peer):
    parser = argparse.ArgumentParser(description=f"Times bucketed QSGD written with {peer} on the CPU.")
    parser.add_argument("--size", type=_positive, default=1 << 24, help="gradient elements (default 2^24)")
    parser.add_argument("--bits", type=_bits, default=[4], help="code width: 2, 4, 8, or a list such as 2,4,8")
    parser.add_argument("--bucket", type=_bucket, default=512, help="elements that share a norm (default 512)")
    parser.add_argument("--threads", type=_positive, default=cpu_count(), help="default: all this process may use")
    parser.add_argument("--repeats", type=_positive, default=9, help="timed runs a row; the median is reported")
    parser.add_argument("--json", metavar="FILE", help="also write the rows here, as one JSON array")
    if peer == "torch":
        parser.add_argument("--no-compile", action="store_true", help="leave the torch.compile rows out")
    options = parser.parse_args()
    if sys.byteorder != "little":
        parser.error("the packing below is written for little-endian machines")
    # A last partial bucket is padded with zeros: these are whole buckets, and rates are still over `size`.
    options.buckets = -(-options.size // options.bucket)
    return options


def levels(bits):
    """Magnitude levels above zero of a sign-magnitude code of `bits` bits."""
    return (1 << (bits - 1)) - 1


def code_value(code, bits):
    """A code as a fraction of the norm."""
    magnitude = (code & levels(bits)) / levels(bits)
    return -magnitude if code >> (bits - 1) else magnitude


def lookup_table(bits, index_bits):
    """The value of every code in every possible `index_bits`-wide piece of the packed stream, flattened."""
    values = [code_value(code, bits) for code in range(1 << bits)]
    mask = (1 << bits) - 1
    return [values[(index >> shift) & mask] for index in range(1 << index_bits) for shift in range(0, index_bits, bits)]


class Blocks:
    """Runs a codec over whole buckets in blocks, on one Python thread or on several.

    Both frameworks let go of the interpreter lock inside an operation, so threads that each own a codec (scratch
    and random generator) run side by side.
    """

    def __init__(self, buckets, block, threads, make_codec, start_thread=None):
        threads = min(threads, buckets)
        # Contiguous shares that differ by at most one bucket.
        cuts = [buckets * i // threads for i in range(threads + 1)]
        share = max(high - low for low, high in zip(cuts, cuts[1:]))
        self.block = max(1, min(block, share))
        self.work = [(make_codec(self.block, i), low, high) for i, (low, high) in enumerate(zip(cuts, cuts[1:]))]
        self.pool = ThreadPoolExecutor(threads, initializer=start_thread) if threads > 1 else None

    def _each(self, body):
        def share(item):
            codec, low, high = item
            for first in range(low, high, self.block):
                body(codec, slice(first, min(first + self.block, high)))

        if self.pool is None:
            share(self.work[0])
        else:
            list(self.pool.map(share, self.work))

    def encode(self, x, packed, norms, uniform=None):
        def body(codec, at):
            codec.encode(x[at], packed[at], norms[at], None if uniform is None else uniform[at])

        self._each(body)

    def decode_add(self, packed, norms, weight, accumulator):
        self._each(lambda codec, at: codec.decode_add(packed[at], norms[at], weight, accumulator[at]))

    def copy(self, source, target):
        self._each(lambda codec, at: codec.copy(source[at], target[at]))

    def close(self):
        if self.pool is not None:
            self.pool.shutdown()


class Taken(list):
    """Seconds of each run, and how many processors the process had on average while they were timed."""

    cpus = 0.0


def seconds(run, repeats):
    """Times each of `repeats` runs, after one that is not counted."""
    run()
    taken = Taken()
    cpu = time.process_time()
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    taken.cpus = (time.process_time() - cpu) / max(sum(taken), 1e-9)
    return taken


def fastest_block(make, call, bucket, scale=1):
    """The Blocks from `make(block in buckets)` that runs `call` fastest, by a short probe of BLOCKS."""
    best = None
    tried = set()
    for elements in BLOCKS:
        candidate = make(max(1, elements * scale // bucket))
        if candidate.block in tried:
            candidate.close()
            continue
        tried.add(candidate.block)
        taken = min(seconds(lambda: call(candidate), 3))
        if best is None or taken < best[0]:
            if best is not None:
                best[1].close()
            best = (taken, candidate)
        else:
            candidate.close()
    return best[1]


def check_round_trip(name, bits, x, packed, norms, decoded):
    """Ends the process unless `decoded` is what encoding `x` may give. Bucket 0 of `x` is all zero.

    Written with operations numpy arrays and torch tensors have in common. `decoded` is overwritten.
    """

    def fail(reason):
        sys.exit(f"{name}: round trip is wrong: {reason}")

    buckets, bucket = x.shape
    s = levels(bits)
    if tuple(packed.shape) != (buckets, bucket * bits // 8) or packed.itemsize != 1:
        fail(f"{bits}-bit codes are not packed to {bucket * bits // 8} bytes per bucket")
    if float(norms[0]) != 0.0 or float(abs(decoded[0]).max()) != 0.0:
        fail("the all-zero bucket did not come back as zeros")

    # Read one bucket's bytes as the format says, in plain Python: element 0 in the lowest bits of byte 0.
    at = buckets - 1
    norm = float(norms[at])
    mask = (1 << bits) - 1
    codes = [(byte >> shift) & mask for byte in packed[at].tolist() for shift in range(0, 8, bits)]
    for i, (code, value, original) in enumerate(zip(codes, decoded[at].tolist(), x[at].tolist())):
        if not math.isclose(code_value(code, bits) * norm, value, rel_tol=1e-5, abs_tol=0.0):
            fail(f"element {i} of bucket {at} has code {code} and decoded to {value}")
        if code & levels(bits) and (code >> (bits - 1) == 1) != (original < 0):
            fail(f"element {i} of bucket {at} changed its sign")

    # Towards or away from zero: the data are symmetric, so signed errors cancel however the rounding is biased.
    mean = float((abs(decoded) - abs(x)).mean())
    decoded -= x
    error = abs(decoded).max(1)
    error = error if not isinstance(error, tuple) else error[0]  # torch also returns where the maximum is.
    excess = float((error - norms * ((1 + 1e-5) / s)).max())
    if not excess <= 0.0:  # Also catches NaN.
        fail(f"|decoded - x| exceeds norm / {s} by {excess}")
    # Stochastic rounding is unbiased; one element's error has a standard deviation of at most norm / (2 s).
    limit = 6 * float(norms.max()) / (2 * s) / math.sqrt(buckets * bucket)
    if abs(mean) > limit:
        fail(f"magnitudes are off by {mean} on average, beyond {limit}: the rounding is biased")


class Report:
    def __init__(self, peer, version, options):
        self.peer, self.version, self.options = peer, version, options
        self.rows = []

    def add(self, op, variant, taken, threads, note, bits=None):
        n = self.options.size
        median = statistics.median(taken)
        row = {
            "peer": self.peer,
            "version": self.version,
            "op": op,
            "variant": variant,
            "bits": bits,
            "bucket": None if bits is None else self.options.bucket,
            "elements": n,
            "seconds_median": median,
            "seconds_min": min(taken),
            "gradient_gbps": 4 * n / median / 1e9,
            "threads": threads,
            "cpus_used": round(taken.cpus, 2),
            "note": note,
        }
        if op == "copy":
            row["copy_gbps"] = 8 * n / median / 1e9
        self.rows.append(row)

    def finish(self):
        fastest = {}
        for row in self.rows:
            key = (row["op"], row["bits"])
            if key not in fastest or row["seconds_median"] < fastest[key]["seconds_median"]:
                fastest[key] = row
        for row in self.rows:
            row["best"] = row is fastest[row["op"], row["bits"]]

        head = ("op", "bits", "variant", "threads", "cpus", "ms median", "ms min", "gradient GB/s", "note")
        lines = [head]
        for row in self.rows:
            lines.append(
                (
                    row["op"],
                    "-" if row["bits"] is None else str(row["bits"]),
                    row["variant"] + (" *" if row["best"] else ""),
                    str(row["threads"]),
                    f"{row['cpus_used']:.2f}",
                    f"{row['seconds_median'] * 1e3:.2f}",
                    f"{row['seconds_min'] * 1e3:.2f}",
                    f"{row['gradient_gbps']:.3f}",
                    row["note"] + (f"; {row['copy_gbps']:.2f} GB/s read + written" if "copy_gbps" in row else ""),
                )
            )
        o = self.options
        print(f"{self.peer} {self.version}: {o.size} elements, bucket {o.bucket}; * fastest for its operation and bits")
        widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
        for line in lines:
            cells = [
                text.rjust(width) if 3 <= i <= 7 else text.ljust(width)
                for i, (text, width) in enumerate(zip(line, widths))
            ]
            print("  ".join(cells + [line[-1]]).rstrip())
        if o.json:
            with open(o.json, "w", encoding="utf-8") as file:
                json.dump(self.rows, file, indent=1)
                file.write("\n")
