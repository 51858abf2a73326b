"""Times numpy's selections of the largest magnitudes: what `cargo xtask bench --codec topk --peers` places beside its own.

    python3 numpy_topk.py --size 16777216 --parts 0.001,0.01 --json out.json
"""

import argparse
import json
import math
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
    parser.add_argument("--parts", default="0.001,0.01,0.1", help="the parts to keep, with commas between")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    numpy = require("numpy")
    x = numpy.random.default_rng(1).standard_normal(options.size, dtype=numpy.float32)

    rows = []
    for part in [float(part) for part in options.parts.split(",")]:
        k = math.ceil(part * options.size)

        def argpartition():
            # The indices in order and the values, which is what a payload holds.
            indices = numpy.argpartition(numpy.abs(x), options.size - k)[options.size - k :]
            indices.sort()
            return indices, x[indices]

        indices, values = argpartition()
        least = numpy.abs(values).min()
        if len(indices) != k or (numpy.abs(x) > least).sum() >= k:
            raise SystemExit(f"argpartition did not find the {k} largest")
        seconds = median_seconds(argpartition, options.repeats)
        row = {"peer": "numpy", "version": numpy.__version__, "op": "topk_encode", "variant": "argpartition", "threads": 1}
        row |= {"setting": f"{100 * part:g} %", "elements": options.size, "seconds_median": seconds, "best": True}
        rows.append(row | {"gradient_gbps": 4e-9 * options.size / seconds})
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(rows, file)


if __name__ == "__main__":
    main()
