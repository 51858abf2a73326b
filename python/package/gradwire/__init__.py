"""Gradwire makes gradients small enough for the wire.

>>> import gradwire, numpy
>>> gradient = numpy.full(10_000, 0.25, numpy.float32)
>>> payload = gradwire.encode("qsgd:bits=4,bucket=512", gradient, run=42, step=1, worker=0)
>>> payload.nbytes
5232
>>> float(gradwire.decode(payload).mean())
0.25

``gradwire.torch`` has the communication hook of PyTorch's DistributedDataParallel.
"""

from . import _interpreter  # noqa: F401, before the extension
from ._gradwire import Compressor, Device, Key, Keyed, Payload, __version__, methods, recipe
from .errors import (
    DeviceError,
    Error,
    ExchangeError,
    GroupError,
    NotFiniteError,
    PayloadError,
    SettingError,
    StateError,
    UnavailableError,
)

__all__ = [
    "Compressor",
    "Device",
    "DeviceError",
    "Error",
    "ExchangeError",
    "GroupError",
    "Key",
    "Keyed",
    "NotFiniteError",
    "Payload",
    "PayloadError",
    "SettingError",
    "StateError",
    "UnavailableError",
    "decode",
    "encode",
    "methods",
    "recipe",
]

_cpu = Device.cpu()


def encode(codec, gradient, *, run=0, step=0, worker=0, tensor=0, residual=None):
    """Compresses a gradient on the CPU: :meth:`Device.encode`."""
    return _cpu.encode(codec, gradient, run=run, step=step, worker=worker, tensor=tensor, residual=residual)


def decode(payload, out=None, *, elements=None):
    """Decodes a payload on the CPU: :meth:`Device.decode`."""
    return _cpu.decode(payload, out, elements=elements)
