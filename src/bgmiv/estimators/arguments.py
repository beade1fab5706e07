"""Names of arguments: old ones still work, and a wrong one gets an error that names the right one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, TypeVar, cast

from bgmiv.data.messages import warn_user
from bgmiv.errors import ArgumentError

__all__ = ["checked_arguments", "unknown_argument"]

P = ParamSpec("P")
T = TypeVar("T")

_RENAMED = {"weights": "sample_weight", "groups": "clusters"}
# What users of other packages type.
_MEANT = {
    "y": "outcome", "dependent": "outcome", "x": "treatment", "t": "treatment", "endog": "treatment",
    "z": "instruments", "w": "instruments", "iv": "instruments", "c": "covariates", "v": "covariates",
    "controls": "covariates", "confounders": "covariates", "exog": "covariates", "features": "covariates",
    "weight": "sample_weight", "cluster": "clusters", "seed": "random_state", "cov_type": "covariance",
    "alpha": "level", "treatment_values": "treatments",
}  # fmt: skip

# What made TSLS another method in earlier versions.
_CURVED = ("degree", "features", "interactions")


def checked_arguments(method: Callable[P, T]) -> Callable[P, T]:
    """A method that takes the old names of its arguments with a warning, and explains wrong ones."""
    parameters = inspect.signature(method).parameters
    known = tuple(parameters)[1:]
    positional = [name for name in known if parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if len(args) > len(positional) + 1:
            others = ", ".join(f"{name}=..." for name in known[len(positional) :])
            raise ArgumentError(
                f"{method.__name__} takes {' and '.join(positional)} by position. Name the other arguments: {others}."
            )
        given: dict[str, Any] = dict(kwargs)
        for name in kwargs:
            if name in known:
                continue
            current = _RENAMED.get(name, name)
            if current not in known:
                raise unknown_argument(method.__name__, name, known)
            if current in kwargs:
                raise ArgumentError(f"both {current}= and {name}=, its old name, are given. Leave out {name}=.")
            warn_user(f"{name}= is now {current}=; the old name will go.", FutureWarning)
            given[current] = given.pop(name)
        return method(*args, **cast(Any, given))

    return call


def unknown_argument(function: str, name: str, known: Collection[str]) -> ArgumentError:
    """The error of an argument that a function does not have.

    Example:
        >>> print(unknown_argument("fit", "instrument", ["outcome", "treatment", "instruments"]))
        fit has no argument 'instrument'. Did you mean 'instruments'? It has outcome, treatment, instruments.
    """
    meant = _MEANT.get(name.lower(), "")
    close = [meant] if meant in known else difflib.get_close_matches(name, known, 1)
    if function == "TSLS" and name in _CURVED:
        return ArgumentError(f"TSLS has no argument {name!r}: it is linear. NPIV() fits a curve that the data choose.")
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return ArgumentError(f"{function} has no argument {name!r}.{hint} It has {', '.join(known)}.")
