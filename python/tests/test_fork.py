"""Processes that are forked, and interpreters beside the first."""

import multiprocessing
import os
import subprocess
import sys

import numpy
import pytest

import gradwire

# More than one thread takes.
ELEMENTS = 1 << 20
# Nothing here takes a second. What hangs is killed, and fails.
SECONDS = 120

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def printed(code):
    """What a fresh interpreter prints that runs code."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def gradient(seed=1):
    return numpy.random.default_rng(seed).standard_normal(ELEMENTS).astype("f4")


def encoded(seed, run=3):
    return bytes(gradwire.encode("qsgd:bits=4,bucket=64", gradient(seed), run=run))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_an_import_starts_no_thread():
    code = """
import os, numpy
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
import gradwire
after = threads()
gradwire.encode("topk:0.01", numpy.ones(1 << 20, "f4"))
print(after - before, threads() > after)
"""
    assert printed(code) in ("0 True", "0 False" if os.cpu_count() == 1 else "")


@pytest.mark.parametrize("threads", ["", "1", "3"])
def test_a_child_of_an_import_alone(threads, monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", threads)
    code = f"""
import os, numpy, gradwire
x = numpy.ones({ELEMENTS}, "f4")
if os.fork() == 0:
    os._exit(0 if len(gradwire.encode("qsgd:bits=4", x)) else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]) if hasattr(os, "waitstatus_to_exitcode") else os.wait()[1])
"""
    assert printed(code) == "0"


def test_children_of_a_process_that_works():
    """Children have the bytes of this process, which goes on."""
    expected = [encoded(seed) for seed in range(4)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(encoded, range(4)).get(SECONDS) == expected
    assert [encoded(seed) for seed in range(4)] == expected


def test_a_child_of_a_child():
    code = f"""
import os, sys, numpy, gradwire
x = numpy.random.default_rng(1).standard_normal({ELEMENTS}).astype("f4")
expected = bytes(gradwire.encode("topk:0.01", x))
def forked(depth):
    same = bytes(gradwire.encode("topk:0.01", x)) == expected
    if depth == 0:
        return same
    child = os.fork()
    if child == 0:
        os._exit(0 if forked(depth - 1) else 1)
    status = os.waitpid(child, 0)[1]
    return status == 0 and same and bytes(gradwire.encode("topk:0.01", x)) == expected
print(forked(3))
"""
    assert printed(code) == "True"


def test_a_compressor_goes_on_in_a_child():
    """State that a parent made: the child's steps are those that the parent would make."""
    code = f"""
import os, numpy, gradwire
class Alone:
    rank, ranks = 0, 1
    def all_gather(self, mine): return [mine]
    def all_to_all(self, parts): return parts
    def all_reduce_sum(self, values): pass
    def exchange(self, peer, mine): return mine
    def broadcast(self, root, mine): return mine
c = gradwire.Compressor("topk:0.01+ef", [[{ELEMENTS}]])
step = lambda seed: c.exchange(gradwire.Device.cpu(), Alone(), numpy.random.default_rng(seed).standard_normal({ELEMENTS}).astype("f4"))
step(1)
read, write = os.pipe()
child = os.fork()
if child == 0:
    step(2)
    os.write(write, (hash(bytes(c.state())) & (2**63 - 1)).to_bytes(8, "little"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
step(2)
print(os.read(read, 8) == (hash(bytes(c.state())) & (2**63 - 1)).to_bytes(8, "little"))
"""
    assert printed(code) == "True"


def test_workers_of_a_data_loader():
    torch = pytest.importorskip("torch")

    class Encoded(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, seed):
            return torch.frombuffer(bytearray(encoded(seed)), dtype=torch.uint8)

    expected = [encoded(seed) for seed in range(4)]
    loader = torch.utils.data.DataLoader(
        Encoded(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=SECONDS
    )
    assert [item.numpy().tobytes() for item in loader] == expected


def test_a_second_interpreter_is_refused():
    names = ["_interpreters", "_xxsubinterpreters"]
    code = f"""
import importlib
for name in {names}:
    try:
        interpreters = importlib.import_module(name)
        break
    except ImportError:
        pass
else:
    print("none")
    raise SystemExit
import gradwire
of_kind = ["legacy"] if name == "_interpreters" else []
other = interpreters.create(*of_kind)
said = interpreters.run_string(other, '''
try:
    import gradwire
    print("imported", flush=True)
except ImportError as error:
    print("refused", flush=True)
''')
if said is not None:
    print(said)
"""
    assert printed(code) in ("refused", "none")
