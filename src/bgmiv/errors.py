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

import re

__all__ = [
    "ArgumentError", "BGMIVError", "BGMIVWarning", "ConfigError", "DataError", "DivergedError", "FetchError",
    "FitInterrupted", "FitWarning", "ForkedProcessError", "KindWarning", "MissingExtraError", "ModelFileError",
    "NotFittedError", "NotIdentifiedError", "StoreError", "SupportWarning", "WeakInstrumentWarning", "printable",
]  # fmt: skip

# Control characters but line breaks, changes of direction, surrogates and non-characters.
_UNPRINTABLE = re.compile(
    "[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufdd0-\\ufdef\\ufffe\\uffff]"
)


def printable(text: object, *, escape: bool = False) -> str:
    r"""A text that cannot move the cursor, colour the terminal or turn the direction of reading.

    Names and values of data reach the terminal in messages; what a terminal would obey is replaced by a sign, or
    written out as an escape, as JSON does.

    >>> printable("a\x1b[31mb"), printable("a\x9bb", escape=True)
    ('a�[31mb', 'a\\u009bb')
    """
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}" if escape else "\ufffd", str(text))


class BGMIVError(Exception):
    """The base of every error raised on purpose by this package.

    Example:
        >>> from bgmiv import TSLS
        >>> try:
        ...     TSLS().fit([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], instruments=[0.0, 1.0, 0.0])
        ... except BGMIVError as error:
        ...     print(type(error).__name__)
        DataError
    """

    def __str__(self) -> str:
        """The message; names and values in it are printable, wherever they came from."""
        return printable(super().__str__())


class DataError(BGMIVError, ValueError):
    """The data cannot be used; the message names the argument or column and the fix.

    Example:
        >>> from bgmiv import TSLS
        >>> TSLS().fit([1.0, float("nan"), 3.0], [1.0, 2.0, 4.0], instruments=[0.0, 1.0, 0.0])
        Traceback (most recent call last):
            ...
        bgmiv.errors.DataError: ...
    """


class NotIdentifiedError(DataError):
    """The instruments do not identify the effect of the treatment.

    Example:
        >>> import numpy as np
        >>> from bgmiv import NPIV
        >>> w, u = np.random.default_rng(0).normal(size=(2, 50))
        >>> x = np.where(w + u > 0.5, "c", np.where(w + u > -0.5, "b", "a"))  # two effects, one instrument
        >>> NPIV().fit(w + u, x, instruments=w)
        Traceback (most recent call last):
            ...
        bgmiv.errors.NotIdentifiedError: ...
    """


class ConfigError(BGMIVError, ValueError):
    """A setting is out of range, unknown, or contradicts another setting.

    Example:
        >>> from bgmiv.registry import find_method
        >>> find_method("ols")
        Traceback (most recent call last):
            ...
        bgmiv.errors.ConfigError: ...
    """


class ArgumentError(ConfigError, TypeError):
    """A function has no argument of this name or place; the message names the one that was probably meant.

    Example:
        >>> from bgmiv import TSLS
        >>> TSLS(covarance="robust")
        Traceback (most recent call last):
            ...
        bgmiv.errors.ArgumentError: ...
    """


class NotFittedError(BGMIVError, ValueError, AttributeError):
    """A result was asked of an estimator before `fit`; the bases are those of scikit-learn's class.

    Example:
        >>> from bgmiv import TSLS
        >>> TSLS().predict(1.0)
        Traceback (most recent call last):
            ...
        bgmiv.errors.NotFittedError: ...
    """


class MissingExtraError(BGMIVError, ImportError):
    """An optional dependency is absent; the message says which extra installs it.

    Example:
        >>> raise MissingExtraError("IVRegressor needs scikit-learn: pip install 'pybgmiv[sklearn]'")
        Traceback (most recent call last):
            ...
        bgmiv.errors.MissingExtraError: IVRegressor needs scikit-learn: pip install 'pybgmiv[sklearn]'
    """


class StoreError(BGMIVError, OSError):
    """A stored file is absent, damaged, or written by an incompatible version."""


class ModelFileError(BGMIVError, OSError):
    """A saved model cannot be written or opened; the message names the file, what is wrong with it, and the fix.

    Example:
        >>> import bgmiv
        >>> bgmiv.load("no-such-folder")
        Traceback (most recent call last):
            ...
        bgmiv.errors.ModelFileError: ...
    """


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
        """Keep the arguments alone, from which a worker's error is made anew in the process that waits for it."""
        super().__init__(phase, step)
        self.phase, self.step = phase, step

    def __str__(self) -> str:
        """Where, and what usually helps."""
        return (
            f"training diverged in phase '{self.phase}' by step {self.step}: the loss is not finite. Lower the "
            "learning rate, or look for extreme values in the data."
        )


class FitInterrupted(BGMIVError, KeyboardInterrupt):
    """Ctrl-C stopped a fit at a safe point; the message says how to resume.

    Example:
        >>> try:
        ...     raise FitInterrupted("stopped at step 500; the same call goes on from there")
        ... except KeyboardInterrupt as stop:
        ...     print(stop)
        stopped at step 500; the same call goes on from there
    """


class BGMIVWarning(UserWarning):
    """Something is legal but probably not what was meant.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", BGMIVWarning)  # a script that must not go on
        ...     warnings.warn("the instruments are weak", WeakInstrumentWarning)
        Traceback (most recent call last):
            ...
        bgmiv.errors.WeakInstrumentWarning: the instruments are weak
    """


class KindWarning(BGMIVWarning):
    """Columns of numbers that hold 0 and 1 only were taken for binary; the message names them and the way out.

    Example:
        >>> import warnings
        >>> from bgmiv import TSLS
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", KindWarning)
        ...     model = TSLS().fit([1.0, 3.0, 2.0, 5.0], [0, 1, 0, 1], instruments=[0.0, 1.0, 0.5, 0.7])
        >>> "treatment_kind='continuous'" in str(caught[0].message)
        True
    """


class FitWarning(BGMIVWarning):
    """Held-out rows, the data before any fit, or clusters that are few, speak against it; the message says how.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", FitWarning)
        ...     warnings.warn("This fit is doubtful: ...", FitWarning)
        >>> issubclass(caught[0].category, BGMIVWarning)
        True
    """


class WeakInstrumentWarning(BGMIVWarning):
    """The instruments move the treatment too little for the usual estimates and intervals; the message says how.

    Example:
        >>> import warnings
        >>> import numpy as np
        >>> from bgmiv import TSLS
        >>> w, u, e = np.random.default_rng(0).normal(size=(3, 200))
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", WeakInstrumentWarning)
        ...     found = TSLS().fit(u + e, 0.1 * w + u, instruments=w).diagnose()
        >>> caught[0].category.__name__, found.weak_instruments
        ('WeakInstrumentWarning', True)
    """


class SupportWarning(BGMIVWarning):
    """Most of what was asked lies where the data show nothing: the answer is an extrapolation.

    Example:
        >>> import warnings
        >>> import numpy as np
        >>> from bgmiv import TSLS
        >>> w, u, e = np.random.default_rng(0).normal(size=(3, 200))
        >>> model = TSLS().fit(w + u + e, w + u, instruments=w)
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", SupportWarning)
        ...     far = model.ate(t0=0.0, t1=100.0)  # no row has a treatment like 100
        >>> caught[0].category.__name__
        'SupportWarning'
    """
