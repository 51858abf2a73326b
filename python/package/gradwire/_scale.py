"""The factor that a loss was multiplied by."""

import math

from . import SettingError


def scale_of(scaler):
    """The factor in this step: of a ``GradScaler``, of a callable that gives it, or 1 without either."""
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
