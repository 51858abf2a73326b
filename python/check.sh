#!/usr/bin/env bash
# Builds the wheel, installs it in a fresh environment, and runs the tests there. `PYTHON` is the interpreter, which needs
# numpy; the tests of the hook run where it has torch, and GRADWIRE_REQUIRE_TORCH=1 makes its absence a failure.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}

# The artifacts of the wheel serve the lints as well.
export CARGO_TARGET_DIR=$PWD/target
rm -rf target/wheels target/fresh
python3 -m pip wheel --quiet --no-deps --wheel-dir target/wheels .
"$python" -m venv --system-site-packages --without-pip target/fresh
python3 -m pip --python target/fresh/bin/python install --quiet --no-deps target/wheels/gradwire-*.whl
target/fresh/bin/python -c 'import pytest' 2>/dev/null ||
  python3 -m pip --python target/fresh/bin/python install --quiet 'pytest>=7'
target/fresh/bin/python - <<'EOF'
import importlib.util, os, sys
import gradwire
print("gradwire", gradwire.__version__, "of", os.path.dirname(gradwire.__file__))
if importlib.util.find_spec("torch") is None:
    if os.environ.get("GRADWIRE_REQUIRE_TORCH"):
        sys.exit("torch is not there, and GRADWIRE_REQUIRE_TORCH asks for it: install python3-torch, or set PYTHON")
    print("torch is not there: the tests of the hook do not run")
else:
    import torch
    print("torch", torch.__version__)
EOF
# Without a GPU, the repository's stand-in for libcuda runs the tests of gradients in a device's memory.
if [ -e ../target/stand-in/lib64/libcuda.so.1 ]; then
  export LD_LIBRARY_PATH=$PWD/../target/stand-in/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
target/fresh/bin/python -m pytest -q --durations=3 tests
# Another seed in each run; a failure prints it.
target/fresh/bin/python tests/fuzz_groups.py --seconds "${GRADWIRE_FUZZ_SECONDS:-30}"
