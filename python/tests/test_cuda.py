"""Gradients in a CUDA device's memory, through DLPack and the driver alone: on a GPU, or on the repository's stand-in."""

import ctypes

import numpy
import pytest

import gradwire
from groups import Alone, train

try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    pytest.skip("there is no CUDA driver, and no stand-in for it in LD_LIBRARY_PATH", allow_module_level=True)

SHAPES = [[64, 48], [64], [40, 50]]
RECIPES = ["qsgd:bits=4,bucket=64+ef", "topk:0.05+momentum=0.9", "onebit", "topk:0.05+ef21"]


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name} gave {code}"


def device_zero():
    """Makes the primary context of device 0 this thread's."""
    call("cuInit", 0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


class OnDevice:
    """A copy of a numpy array in the device's memory, with nothing but DLPack."""

    def __init__(self, array, code=2):
        device_zero()
        self.bytes = array.nbytes
        self.kind = (code, 8 * array.itemsize)
        self.address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(self.bytes, 4)))
        data = numpy.ascontiguousarray(array).ctypes.data_as(ctypes.c_void_p)
        call("cuMemcpyHtoD_v2", self.address, data, ctypes.c_size_t(self.bytes))
        self.shape = (ctypes.c_int64 * 1)(array.size)
        self.asked = []

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None):
        self.asked.append(stream)
        code, bits = self.kind
        self.tensor = DlTensor(self.address.value, (ctypes.c_int32 * 2)(2, 0), 1, code, bits, 1, self.shape, None, 0)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def free(self):
        device_zero()
        call("cuMemFree_v2", self.address)
        self.address.value = 0

    def numpy(self):
        out = numpy.empty(self.bytes // 4, numpy.float32)
        device_zero()
        call("cuCtxSynchronize")
        call("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), self.address, ctypes.c_size_t(self.bytes))
        return out


def gradients(rank, step):
    return numpy.random.default_rng(10 * rank + step).standard_normal(64 * 48 + 64 + 40 * 50, dtype=numpy.float32)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_device_has_the_hosts_bits(recipe):
    """Each step on the device gives the bits of the same step on the host, and so does a state that changes over."""

    def work(group):
        new = lambda: gradwire.Compressor(recipe, SHAPES, 7, small=0)
        host, there, device = new(), new(), gradwire.Device.cpu()
        for step in range(4):
            mine, other = gradients(group.rank, step), OnDevice(gradients(group.rank, step))
            host.exchange(device, group, mine)
            there.exchange(device, group, other)
            assert (other.numpy().view(numpy.uint32) == mine.view(numpy.uint32)).all(), step
            assert set(other.asked) == {-1}
            assert there.steps == host.steps == step + 1 and there.last_bytes == host.last_bytes
        assert there.state() == host.state()
        mine, other = gradients(group.rank, 9), gradients(group.rank, 9)
        host.exchange(device, group, mine)
        there.exchange(device, group, other)
        assert (other.view(numpy.uint32) == mine.view(numpy.uint32)).all()

    train(2, work)


def test_factors():
    """PowerSGD's sums are of floats in an order of the device's own: ranks agree to the bit, and with the host nearly."""

    def work(group):
        host, there = [gradwire.Compressor("powersgd:rank=2", SHAPES, 7, small=0) for _ in range(2)]
        for step in range(4):
            mine, other = gradients(group.rank, step), OnDevice(gradients(group.rank, step))
            host.exchange(gradwire.Device.cpu(), group, mine)
            there.exchange(gradwire.Device.cpu(), group, other)
            found = other.numpy()
            # Sums of 64 terms, four times over, each rounded to 2^-24.
            assert numpy.linalg.norm(found - mine) < 4 * 64 * 2**-24 * numpy.linalg.norm(mine)
        return found

    first, second = train(2, work)
    assert (first.view(numpy.uint32) == second.view(numpy.uint32)).all()


def test_refusals():
    device = gradwire.Device.cpu()
    compressor = gradwire.Compressor("signum+vote", SHAPES, 7, small=0)
    with pytest.raises(gradwire.SettingError, match="vote"):
        compressor.exchange(device, Alone(), OnDevice(gradients(0, 0)))
    compressor = gradwire.Compressor("topk:0.05+ef", SHAPES, 7)
    with pytest.raises(TypeError, match="float32 is needed"):
        compressor.exchange(device, Alone(), OnDevice(gradients(0, 0).astype(numpy.float16)))
    with pytest.raises(gradwire.Error):
        compressor.exchange(device, Alone(), OnDevice(gradients(0, 0)[:-1]))
    with pytest.raises(ValueError, match=r"\.cpu\(\)"):
        gradwire.encode("qsgd:bits=4", OnDevice(gradients(0, 0)))
    # Nothing of that has changed the state.
    assert compressor.steps == 0 and compressor.state() == gradwire.Compressor("topk:0.05+ef", SHAPES, 7).state()
    compressor.exchange(device, Alone(), OnDevice(gradients(0, 0)))
    assert compressor.steps == 1
    compressor.undo()
    assert compressor.steps == 0 and compressor.state() == gradwire.Compressor("topk:0.05+ef", SHAPES, 7).state()
    with pytest.raises(gradwire.ExchangeError):
        compressor.undo()


def test_a_group_that_fails():
    class Broken(Alone):
        def all_gather(self, mine):
            raise ConnectionError("the cable was cut")

    compressor = gradwire.Compressor("topk:0.05+ef", SHAPES, 7)
    before, gradient = compressor.state(), OnDevice(gradients(0, 0))
    with pytest.raises(gradwire.GroupError, match="the cable was cut"):
        compressor.exchange(gradwire.Device.cpu(), Broken(), gradient)
    assert compressor.state() == before and (gradient.numpy() == gradients(0, 0)).all()


@pytest.mark.parametrize("in_place", [False, True])
def test_in_place_and_apart_are_the_same_step(in_place):
    compressor, host = [gradwire.Compressor("topk:0.05+ef", SHAPES, 7) for _ in range(2)]
    for step in range(3):
        there, mine = OnDevice(gradients(0, step)), gradients(0, step)
        compressor.exchange(gradwire.Device.cpu(), Alone(), there, in_place=in_place)
        host.exchange(gradwire.Device.cpu(), Alone(), mine)
        assert (there.numpy().view(numpy.uint32) == mine.view(numpy.uint32)).all()
    assert compressor.state() == host.state()


@pytest.mark.parametrize("becomes", ["freed", "moved", "shorter", "numpy"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_group_that_takes_the_gradients_memory(becomes, fails):
    """A step does not touch memory that was freed meanwhile, whether it succeeds or fails."""
    kept = []

    class Taking(Alone):
        def all_gather(self, mine):
            gradient.free()
            kept.extend(OnDevice(numpy.full(gradients(0, 0).size, 7, numpy.float32)) for _ in range(4))
            if becomes == "moved":
                gradient.address, gradient.moved = kept[0].address, kept.pop(0)
            elif becomes == "shorter":
                gradient.address, gradient.shape[0] = kept[0].address, 100
            elif becomes == "numpy":
                gradient.__class__ = Left
            if fails:
                raise ConnectionError("the cable was cut")
            return [mine]

    class Left(OnDevice):
        def __dlpack_device__(self):
            return (1, 0)

    gradient, host = OnDevice(gradients(0, 0)), gradients(0, 0)
    compressor, other = [gradwire.Compressor("topk:0.05+ef", SHAPES, 7) for _ in range(2)]
    before = compressor.state()
    if fails:
        with pytest.raises(gradwire.GroupError, match="the cable was cut"):
            compressor.exchange(gradwire.Device.cpu(), Taking(), gradient)
        assert compressor.state() == before
    else:
        other.exchange(gradwire.Device.cpu(), Alone(), host)
        if becomes == "moved":
            compressor.exchange(gradwire.Device.cpu(), Taking(), gradient)
            assert (gradient.numpy().view(numpy.uint32) == host.view(numpy.uint32)).all()
        else:
            with pytest.raises(RuntimeError, match="memory changed during its exchange"):
                compressor.exchange(gradwire.Device.cpu(), Taking(), gradient)
        assert compressor.state() == other.state()
        compressor.undo()
        assert compressor.state() == before
    # The stand-in refuses work on memory that was freed. A GPU would do it, and one of these would be where it was.
    for array in kept:
        assert (array.numpy() == 7).all()


def test_streams():
    """A stream is an object that says so, and is kept for as long as work goes to it."""

    class Stream:
        version = 0

        def __init__(self):
            device_zero()
            self.handle = ctypes.c_void_p()
            call("cuStreamCreate", ctypes.byref(self.handle), 1)

        def __cuda_stream__(self):
            return (self.version, self.handle.value)

        def __del__(self):
            gone.append(self.handle.value)
            device_zero()
            call("cuStreamDestroy_v2", self.handle)

    class OfTorch(Stream):
        __cuda_stream__ = property(lambda self: exec("raise AttributeError"))

        @property
        def cuda_stream(self):
            return self.handle.value

    gone = []
    compressor, host = [gradwire.Compressor("topk:0.05+ef", SHAPES, 7) for _ in range(2)]
    exchange = lambda **named: compressor.exchange(gradwire.Device.cpu(), Alone(), gradient, **named)
    for step, kind in enumerate([Stream, OfTorch, lambda: 0]):
        gradient, mine = OnDevice(gradients(0, step)), gradients(0, step)
        exchange(stream=kind())
        host.exchange(gradwire.Device.cpu(), Alone(), mine)
        assert (gradient.numpy().view(numpy.uint32) == mine.view(numpy.uint32)).all()
        # The one of the step before has gone, and no other.
        assert len(gone) == step
    assert compressor.state() == host.state()
    for wrong in [1, 12345, 2**64 - 1, -1, "0", None, 1.0]:
        with pytest.raises(TypeError, match="hand over a torch.cuda.Stream"):
            exchange(stream=wrong)
    Stream.version = 1
    with pytest.raises(ValueError, match="version 1 of __cuda_stream__"):
        exchange(stream=Stream())
    assert compressor.steps == 3


def test_memory_that_is_no_device_s():
    """The driver is asked about an address before anything is copied from it."""
    compressor = gradwire.Compressor("topk:0.05+ef", SHAPES, 7)
    before = compressor.state()
    for address in [4096, gradients(0, 0).ctypes.data]:
        gradient = OnDevice(gradients(0, 0))
        gradient.address.value = address
        with pytest.raises(gradwire.SettingError, match="the gradient at 0x"):
            compressor.exchange(gradwire.Device.cpu(), Alone(), gradient)
    assert compressor.state() == before
