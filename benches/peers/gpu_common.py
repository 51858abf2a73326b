"""What the scripts that `cargo xtask report` runs on a GPU share: options, the gradient, timing, and a row a line.

Every script prints one JSON object a line on standard output as soon as it has it, so that a kill loses nothing. The
keys are those of `PeerRow` in report/schema.rs of tools/bench; `codec`, `setting`, `op`, `dtype` and `elements` say
which row of Gradwire's it stands beside. Anything else goes to standard error.

Exit codes: 0 done, 1 a result was wrong or an unexpected error, 2 bad options, 3 what it needs is not installed.
"""

import argparse
import importlib
import json
import sys
import time

EXIT_NOT_INSTALLED = 3
# A turn through all sets of buffers touches this much on a GPU: eight times the largest L2 so far.
ROTATE = 1 << 30
# No more of the device's memory than this part.
MEMORY = 0.5
SAMPLES = 40
LEAST_SAMPLES = 3
SAMPLE_SECONDS = 2e-3
WARM_UP = 20
PARTS = ((0.001, "0.1 %"), (0.01, "1 %"), (0.1, "10 %"))


def note(*words):
    print(*words, file=sys.stderr, flush=True)


def require(module):
    """Imports `module`, or ends the process with EXIT_NOT_INSTALLED and one line."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # A broken installation raises anything from OSError to ValueError.
        absent = isinstance(error, ModuleNotFoundError) and error.name == module
        reason = "is not installed" if absent else "does not import: " + " ".join(str(error).split())[:200]
        note(f"{module} {reason}, for {sys.executable}")
        sys.exit(EXIT_NOT_INSTALLED)


def _sizes(text):
    sizes = [int(part) for part in text.split(",")]
    if not sizes or any(size < 1024 for size in sizes):
        raise argparse.ArgumentTypeError("sizes are numbers of elements, 1024 and more")
    return sizes


def options(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to run; cpu shows the logic alone")
    parser.add_argument("--sizes", type=_sizes, default=[1 << 24], help="numbers of elements, separated by commas")
    parser.add_argument("--seconds", type=float, default=60.0, help="for everything")
    return parser.parse_args()


class Clock:
    """The time that is left, shared evenly between the measurements that are left."""

    def __init__(self, seconds, measurements):
        # Some is for checks, compilers and the gradient.
        self.end = time.monotonic() + 0.8 * seconds
        self.left = max(1, measurements)

    def slice(self):
        share = (self.end - time.monotonic()) / self.left
        self.left = max(1, self.left - 1)
        return min(0.6, share)


def quartiles(values):
    """The values below which a quarter, a half and three quarters of all lie, interpolated."""
    values = sorted(values)

    def at(part):
        place = part * (len(values) - 1)
        low = int(place)
        high = min(low + 1, len(values) - 1)
        return values[low] + (values[high] - values[low]) * (place - low)

    return at(0.25), at(0.5), at(0.75)


class Torch:
    """Timing and data through torch, by CUDA events on a GPU and by the host's clock on the CPU."""

    def __init__(self, device):
        self.torch = require("torch")
        self.device = device
        if device == "cuda" and not self.torch.cuda.is_available():
            note("torch", self.torch.__version__, "sees no CUDA device")
            sys.exit(EXIT_NOT_INSTALLED)
        self.clock = "cuda events" if device == "cuda" else "host"
        self.torch.manual_seed(1)

    def gradient(self, n, dtype="f32"):
        """Heavy tails, as Gradwire's own benches draw them: Student's t with 4 degrees of freedom."""
        torch = self.torch
        chi = -2.0 * torch.log(torch.rand(n, device=self.device) * torch.rand(n, device=self.device) + 1e-30)
        x = 0.01 * torch.randn(n, device=self.device) / torch.sqrt(chi / 4.0)
        return x if dtype == "f32" else x.to(torch.bfloat16)

    def sets(self, touched, each):
        """How many sets of buffers to take turns with, where a run touches and a set takes so many bytes."""
        if self.device == "cpu":
            return 1
        free, _ = self.torch.cuda.mem_get_info()
        return max(1, min(-(-ROTATE // touched), int(free * MEMORY) // max(1, each)))

    def turns(self, works, repeats):
        """Seconds of so many turns through all works."""
        torch = self.torch
        if self.device == "cpu":
            start = time.perf_counter()
            for _ in range(repeats):
                for work in works:
                    work()
            return time.perf_counter() - start
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            for work in works:
                work()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e-3

    def time(self, works, seconds):
        return sample(lambda repeats: self.turns(works, repeats), len(works), seconds)


def sample(turns, sets, seconds):
    """Times `turns(repeats)`, which runs every set so often: warm-up, then samples that are long enough for the clock."""
    end = time.monotonic() + seconds
    warm, taken = 0, 0.0
    while warm < WARM_UP and not (warm and time.monotonic() > end):
        taken = turns(1)
        warm += sets
    repeats = 1
    while taken < SAMPLE_SECONDS and repeats * sets < 4096 and time.monotonic() < end:
        repeats = int(repeats * min(16.0, max(2.0, 1.2 * SAMPLE_SECONDS / max(taken, 1e-9))))
        taken = turns(repeats)
    each = []
    while len(each) < SAMPLES and (len(each) < LEAST_SAMPLES or time.monotonic() < end):
        each.append(turns(repeats) / (repeats * sets))
    low, middle, high = quartiles(each)
    return {
        "seconds": middle,
        "seconds_p25": low,
        "seconds_p75": high,
        "samples": len(each),
        "runs": repeats * sets,
        "sets": sets,
    }


def row(timing, *, peer, version, device, codec, setting, op, dtype, elements, clock, note):
    """Prints a row."""
    entry = dict(
        peer=peer, version=version, device=device, codec=codec, setting=setting, op=op, dtype=dtype, elements=elements,
        clock=clock, note=note, **timing,
    )  # fmt: skip
    print(json.dumps(entry), flush=True)


def wrong(what):
    """Ends the process: a peer that computes something else is no peer."""
    note(f"wrong result: {what}")
    sys.exit(1)
