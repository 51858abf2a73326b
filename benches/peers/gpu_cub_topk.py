"""Compiles gpu_cub_topk.cu with nvcc, and runs it: top-k by cub::DeviceTopK, which needs CCCL 3.3 or newer.

    python3 gpu_cub_topk.py --device cuda --sizes 16777216,67108864 --seconds 60

The headers are those in GRADWIRE_CCCL where that is set, else of the Python package nvidia-cuda-cccl, else the toolkit's own.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

from gpu_common import EXIT_NOT_INSTALLED, note, options


def nvcc():
    found = shutil.which("nvcc")
    places = ["/usr/local/cuda/bin/nvcc", "/opt/cuda/bin/nvcc"]
    found = found or next((place for place in places if os.access(place, os.X_OK)), None)
    if found is None:
        note(f"nvcc is neither on PATH nor {' nor '.join(places)}")
        sys.exit(EXIT_NOT_INSTALLED)
    return found


def headers():
    if os.environ.get("GRADWIRE_CCCL"):
        return ["-I" + os.environ["GRADWIRE_CCCL"]]
    for base in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for found in pathlib.Path(base).glob("nvidia/*/include/cccl"):
            if (found / "cub/device/device_topk.cuh").is_file():
                return [f"-I{found}"]
    return []


def main():
    asked = options(__doc__.splitlines()[0])
    if asked.device != "cuda":
        note("cub runs on CUDA alone")
        sys.exit(EXIT_NOT_INSTALLED)
    here = pathlib.Path(__file__).resolve().parent
    program = here / "gpu_cub_topk"
    flags = ["-O3", "-std=c++17", "-arch=native", *headers(), str(here / "gpu_cub_topk.cu"), "-o", str(program)]
    built = subprocess.run([nvcc(), *flags], capture_output=True, text=True)
    if built.returncode != 0:
        missing = "device_topk.cuh" in built.stderr or "DeviceTopK" in built.stderr
        lines = [line for line in built.stderr.splitlines() if "error" in line] or built.stderr.splitlines() or ["no words"]
        note("nvcc:", lines[0][:300])
        note("cub::DeviceTopK is in CCCL 3.3 and newer: pip install nvidia-cuda-cccl" if missing else "it does not compile")
        sys.exit(EXIT_NOT_INSTALLED if missing else 1)
    sizes = ",".join(str(size) for size in asked.sizes)
    # In the place of this process, so that whoever stops this one stops it.
    sys.stdout.flush()
    os.execv(program, [str(program), sizes, str(asked.seconds)])


if __name__ == "__main__":
    main()
