"""bgmiv: instrumental-variable analysis with nonlinear effects and rich covariates.

Names are loaded on first use, so that `import bgmiv` and the command line's help are quick.

Example:
    >>> import bgmiv
    >>> bgmiv.BGMIV(preset="paper", random_state=1)
    BGMIV(preset='paper', random_state=1)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bgmiv.adapters.sklearn import IVRegressor
    from bgmiv.data import BlockSpec, FixedAffine, Identity, IVData, RoleScaling, Standardise
    from bgmiv.errors import (
        BGMIVError,
        BGMIVWarning,
        ConfigError,
        DataError,
        FitInterrupted,
        ModelFileError,
        NotFittedError,
    )
    from bgmiv.estimators.bgmiv import BGMIV, BGMIVConfig, FittedBGMIV
    from bgmiv.estimators.deepgmm import DeepGMM
    from bgmiv.estimators.deepiv import DeepIV
    from bgmiv.estimators.dfiv import DFIV
    from bgmiv.estimators.kiv import KIV
    from bgmiv.estimators.tsls import TSLS
    from bgmiv.integrate import FiniteMixture, GaussHermite, MonteCarlo, QuasiMonteCarlo
    from bgmiv.show.compare import compare

__all__ = [
    "BGMIV",
    "DFIV",
    "KIV",
    "TSLS",
    "BGMIVConfig",
    "BGMIVError",
    "BGMIVWarning",
    "BlockSpec",
    "ConfigError",
    "DataError",
    "DeepGMM",
    "DeepIV",
    "FiniteMixture",
    "FitInterrupted",
    "FittedBGMIV",
    "FixedAffine",
    "GaussHermite",
    "IVData",
    "IVRegressor",
    "Identity",
    "ModelFileError",
    "MonteCarlo",
    "NotFittedError",
    "QuasiMonteCarlo",
    "RoleScaling",
    "Standardise",
    "compare",
]

_HOMES = {
    "bgmiv.adapters.sklearn": ("IVRegressor",),
    "bgmiv.data": ("BlockSpec", "FixedAffine", "IVData", "Identity", "RoleScaling", "Standardise"),
    "bgmiv.errors": (
        "BGMIVError",
        "BGMIVWarning",
        "ConfigError",
        "DataError",
        "FitInterrupted",
        "ModelFileError",
        "NotFittedError",
    ),
    "bgmiv.estimators.bgmiv": ("BGMIV", "BGMIVConfig", "FittedBGMIV"),
    "bgmiv.estimators.deepgmm": ("DeepGMM",),
    "bgmiv.estimators.deepiv": ("DeepIV",),
    "bgmiv.estimators.dfiv": ("DFIV",),
    "bgmiv.estimators.kiv": ("KIV",),
    "bgmiv.estimators.tsls": ("TSLS",),
    "bgmiv.integrate": ("FiniteMixture", "GaussHermite", "MonteCarlo", "QuasiMonteCarlo"),
    "bgmiv.show.compare": ("compare",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("bgmiv")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bgmiv' has no attribute '{name}'")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
