"""Every exception and warning a user can see.

All of them derive from `BGMIVError` or `BGMIVWarning`, and also from the built-in class a caller would
expect, so both of these work:

>>> try:
...     raise DataError("treatment is constant")
... except ValueError as error:
...     print(error)
treatment is constant
>>> issubclass(DataError, BGMIVError)
True
"""

from __future__ import annotations

__all__ = [
    "BGMIVError", "BGMIVWarning", "ConfigError", "DataError", "DivergedError", "FetchError", "FitInterrupted",
    "FitWarning", "ForkedProcessError", "MissingExtraError", "ModelFileError", "NotFittedError", "NotIdentifiedError",
    "StoreError", "SupportWarning", "WeakInstrumentWarning",
]  # fmt: skip


class BGMIVError(Exception):
    """The base of every error raised on purpose by this package."""


class DataError(BGMIVError, ValueError):
    """The data cannot be used; the message names the argument or column and the fix."""


class NotIdentifiedError(DataError):
    """The instruments do not identify the effect of the treatment."""


class ConfigError(BGMIVError, ValueError):
    """A setting is out of range, unknown, or contradicts another setting."""


class NotFittedError(BGMIVError, ValueError, AttributeError):
    """A result was asked of an estimator before `fit`; the bases are those of scikit-learn's class."""


class MissingExtraError(BGMIVError, ImportError):
    """An optional dependency is absent; the message says which extra installs it."""


class StoreError(BGMIVError, OSError):
    """A stored file is absent, damaged, or written by an incompatible version."""


class ModelFileError(BGMIVError, OSError):
    """A saved model cannot be written or opened; the message names the file, what is wrong with it, and the fix."""


class FetchError(BGMIVError, OSError):
    """A data set cannot be fetched; the message lists what was tried, why each failed, and the way out."""


class ForkedProcessError(BGMIVError, RuntimeError):
    """A forked process was asked for what only a spawned one can do; the message says how to start one."""


class DivergedError(BGMIVError, ArithmeticError):
    """Training produced a loss that is not finite.

    Args:
        phase: the training phase.
        step: the step at the end of the chunk in which it was seen.
    """

    def __init__(self, phase: str, step: int) -> None:
        """Say where, and what usually helps."""
        super().__init__(
            f"training diverged in phase '{phase}' by step {step}: the loss is not finite. Lower the "
            "learning rate, or look for extreme values in the data."
        )
        self.phase, self.step = phase, step

    def __reduce__(self) -> tuple[type[DivergedError], tuple[str, int]]:
        """Rebuild from the arguments, so that the error survives the way back from a worker process."""
        return type(self), (self.phase, self.step)


class FitInterrupted(BGMIVError, KeyboardInterrupt):
    """Ctrl-C stopped a fit at a safe point; the message says how to resume."""


class BGMIVWarning(UserWarning):
    """Something is legal but probably not what was meant."""


class FitWarning(BGMIVWarning):
    """Held-out rows speak against a fit; the message says how."""


class WeakInstrumentWarning(BGMIVWarning):
    """The instruments move the treatment too little for the usual estimates and intervals; the message says how."""


class SupportWarning(BGMIVWarning):
    """Most of what was asked lies where the data show nothing: the answer is an extrapolation."""
