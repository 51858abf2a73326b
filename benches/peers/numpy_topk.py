"""Times numpy's selections of the largest magnitudes: what `cargo xtask bench --top-k` places beside its own.

    python3 numpy_topk.py --size 16777216 --counts 1677,16777 --json out.json
"""

import argparse
import json
import statistics
import time

from common import require


def median_seconds(work, repeats):
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1 << 24)
    parser.add_argument("--counts", required=True, help="how many to keep, with commas between")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    numpy = require("numpy")
    x = numpy.random.default_rng(1).standard_normal(options.size, dtype=numpy.float32)

    rows = []
    for k in [int(k) for k in options.counts.split(",")]:

        def argpartition():
            # The indices in order and the values, which is what a payload holds.
            indices = numpy.argpartition(numpy.abs(x), options.size - k)[options.size - k :]
            indices.sort()
            return indices, x[indices]

        indices, values = argpartition()
        least = numpy.abs(values).min()
        if len(indices) != k or (numpy.abs(x) > least).sum() >= k:
            raise SystemExit(f"argpartition did not find the {k} largest")
        rows.append({"peer": f"numpy {numpy.__version__}", "op": "argpartition", "k": k, "seconds": median_seconds(argpartition, options.repeats)})
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(rows, file)


if __name__ == "__main__":
    main()
