"""What can go wrong. Every text says what was asked, what was found and what to do."""


class Error(Exception):
    """An error of Gradwire."""


class SettingError(Error, ValueError):
    """A codec, a recipe or a length that cannot be used."""


class NotFiniteError(Error, ArithmeticError):
    """NaN, infinity or an overflow, where the policy refuses it."""


class PayloadError(Error, ValueError):
    """Bytes that are no payload, or payloads that do not fit one another."""


class StateError(Error, ValueError):
    """A saved state that is damaged, or of something else."""


class ExchangeError(Error, RuntimeError):
    """What another rank sent does not fit."""


class GroupError(Error, RuntimeError):
    """Ranks that could not work together. ``__cause__`` is the group's own exception, where there was one."""


class UnavailableError(Error, RuntimeError):
    """A backend that this machine does not offer."""


class DeviceError(Error, RuntimeError):
    """A device that failed, or whose limits are too small."""
