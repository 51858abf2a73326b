"""Checks and warnings of settings and parameters."""

import math
import warnings

from . import Key, SettingError
from ._gradwire import drops


def scale_of(scaler):
    """What the loss is multiplied by in this step: the factor of a ``GradScaler``, of a callable that gives it, or 1 without either."""
    if scaler is None:
        return 1.0
    scale = float(scaler.get_scale() if hasattr(scaler, "get_scale") else scaler())
    if not (0.0 < scale < math.inf):
        raise SettingError(
            f"the loss scale is {scale}, and a finite number above 0 is needed: the scaler has halved it too often, or scaler= "
            "gives another number"
        )
    return scale


def expect_scaler(scaler):
    """Refuses what gives no scale."""
    if scaler is not None and not hasattr(scaler, "get_scale") and not callable(scaler):
        raise SettingError(
            f"scaler= is a {type(scaler).__name__}: hand over a GradScaler, or a function that gives the current scale"
        )
    return scaler


def expect_key(key):
    """Refuses what is no key."""
    if key is not None and not isinstance(key, Key):
        raise SettingError(f"key= is a {type(key).__name__}: hand over a gradwire.Key, made of 32 secret bytes")
    return key


def expect_real(name, parameter):
    """Refuses a complex parameter."""
    if parameter.is_complex():
        raise SettingError(
            f"the parameter {name} is complex, and float gradients are compressed: make it a parameter of "
            "torch.view_as_real, or average its gradient without compression"
        )


def warn_of_float64(name):
    """Says what becomes of float64."""
    warnings.warn(
        f"the gradient of {name} is float64, and is exchanged as float32: with 24 bits, and infinite above 3.4e38",
        stacklevel=4,
    )


def warn_of_drops(recipe):
    """Says that a recipe loses what it leaves out, unless its text says that this is wanted."""
    if drops(recipe) and "noef" not in recipe.split("+"):
        warnings.warn(
            f"{recipe!r} loses the entries that it does not send: add +ef to send them later, or +noef if that is wanted",
            stacklevel=3,
        )
