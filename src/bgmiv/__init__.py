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

from bgmiv._version import VERSION

if TYPE_CHECKING:
    from bgmiv.adapters.sklearn import IVRegressor
    from bgmiv.analysis.compare import compare
    from bgmiv.baselines.control_function import ControlFunction
    from bgmiv.baselines.deepgmm import DeepGMM
    from bgmiv.baselines.deepiv import DeepIV
    from bgmiv.baselines.dfiv import DFIV
    from bgmiv.baselines.kiv import KIV
    from bgmiv.baselines.npiv import NPIV
    from bgmiv.baselines.tsls import TSLS
    from bgmiv.bgm.estimator import BGMIV, BGMIVConfig, FittedBGMIV
    from bgmiv.data import BlockSpec, FixedAffine, Identity, IVData, RoleScaling, Standardise
    from bgmiv.data.files import read_table
    from bgmiv.designs.empirical import load_empirical
    from bgmiv.effects import DoseResponse
    from bgmiv.errors import (
        BGMIVError,
        BGMIVWarning,
        ConfigError,
        DataError,
        FitInterrupted,
        FitWarning,
        ModelFileError,
        NotFittedError,
        SupportWarning,
        WeakInstrumentWarning,
    )
    from bgmiv.integrate import FiniteMixture, GaussHermite, MonteCarlo, QuasiMonteCarlo
    from bgmiv.intervals import Interval
    from bgmiv.registry import load

__all__ = [
    "BGMIV", "DFIV", "KIV", "NPIV", "TSLS", "BGMIVConfig", "BGMIVError", "BGMIVWarning", "BlockSpec", "ConfigError",
    "ControlFunction", "DataError", "DeepGMM", "DeepIV", "DoseResponse", "FiniteMixture", "FitInterrupted",
    "FitWarning", "FittedBGMIV", "FixedAffine", "GaussHermite", "IVData", "IVRegressor", "Identity", "Interval",
    "ModelFileError", "MonteCarlo", "NotFittedError", "QuasiMonteCarlo", "RoleScaling", "Standardise", "SupportWarning",
    "WeakInstrumentWarning", "compare", "load", "load_empirical", "read_table",
]  # fmt: skip

_HOMES = {
    "bgmiv.adapters.sklearn": "IVRegressor",
    "bgmiv.analysis.compare": "compare",
    "bgmiv.baselines.control_function": "ControlFunction",
    "bgmiv.baselines.deepgmm": "DeepGMM",
    "bgmiv.baselines.deepiv": "DeepIV",
    "bgmiv.baselines.dfiv": "DFIV",
    "bgmiv.baselines.kiv": "KIV",
    "bgmiv.baselines.npiv": "NPIV",
    "bgmiv.baselines.tsls": "TSLS",
    "bgmiv.bgm.estimator": "BGMIV BGMIVConfig FittedBGMIV",
    "bgmiv.data": "BlockSpec FixedAffine IVData Identity RoleScaling Standardise",
    "bgmiv.data.files": "read_table",
    "bgmiv.designs.empirical": "load_empirical",
    "bgmiv.effects": "DoseResponse",
    "bgmiv.errors": "BGMIVError BGMIVWarning ConfigError DataError FitInterrupted FitWarning "
    "ModelFileError NotFittedError SupportWarning WeakInstrumentWarning",
    "bgmiv.integrate": "FiniteMixture GaussHermite MonteCarlo QuasiMonteCarlo",
    "bgmiv.intervals": "Interval",
    "bgmiv.registry": "load",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return VERSION
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bgmiv' has no attribute '{name}'")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
