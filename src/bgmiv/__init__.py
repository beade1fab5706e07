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
    from bgmiv.analysis.analysis import Analysis
    from bgmiv.analysis.compare import Comparison, compare
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
    from bgmiv.diagnostics.checks import Diagnosis
    from bgmiv.diagnostics.explanations import Check
    from bgmiv.diagnostics.sensitivity import Sensitivity
    from bgmiv.diagnostics.verdict import Verdict
    from bgmiv.effects import DoseResponse
    from bgmiv.errors import (
        ArgumentError,
        BGMIVError,
        BGMIVWarning,
        ConfigError,
        DataError,
        FitInterrupted,
        FitWarning,
        KindWarning,
        MissingExtraError,
        ModelFileError,
        NotFittedError,
        NotIdentifiedError,
        SupportWarning,
        WeakInstrumentWarning,
    )
    from bgmiv.estimators.calibration import Calibration
    from bgmiv.integrate import FiniteMixture, GaussHermite, MonteCarlo, QuasiMonteCarlo
    from bgmiv.intervals import Interval
    from bgmiv.registry import load

__all__ = [
    "BGMIV", "DFIV", "KIV", "NPIV", "TSLS", "Analysis", "ArgumentError", "BGMIVConfig", "BGMIVError", "BGMIVWarning",
    "BlockSpec", "Calibration", "Check", "Comparison", "ConfigError", "ControlFunction", "DataError", "DeepGMM",
    "DeepIV", "Diagnosis", "DoseResponse", "FiniteMixture", "FitInterrupted", "FitWarning", "FittedBGMIV",
    "FixedAffine", "GaussHermite", "IVData", "IVRegressor", "Identity", "Interval", "KindWarning", "MissingExtraError",
    "ModelFileError", "MonteCarlo", "NotFittedError", "NotIdentifiedError", "QuasiMonteCarlo", "RoleScaling",
    "Sensitivity", "Standardise", "SupportWarning", "Verdict", "WeakInstrumentWarning", "compare", "load",
    "load_empirical", "read_table",
]  # fmt: skip

_HOMES = {
    "bgmiv.adapters.sklearn": "IVRegressor",
    "bgmiv.analysis.analysis": "Analysis",
    "bgmiv.analysis.compare": "Comparison compare",
    "bgmiv.bgm.estimator": "BGMIVConfig FittedBGMIV",
    "bgmiv.data": "BlockSpec FixedAffine IVData Identity RoleScaling Standardise",
    "bgmiv.data.files": "read_table",
    "bgmiv.designs.empirical": "load_empirical",
    "bgmiv.diagnostics.checks": "Diagnosis",
    "bgmiv.diagnostics.explanations": "Check",
    "bgmiv.diagnostics.sensitivity": "Sensitivity",
    "bgmiv.diagnostics.verdict": "Verdict",
    "bgmiv.effects": "DoseResponse",
    "bgmiv.errors": "ArgumentError BGMIVError BGMIVWarning ConfigError DataError FitInterrupted FitWarning KindWarning "
    "MissingExtraError ModelFileError NotFittedError NotIdentifiedError SupportWarning WeakInstrumentWarning",
    "bgmiv.estimators.calibration": "Calibration",
    "bgmiv.integrate": "FiniteMixture GaussHermite MonteCarlo QuasiMonteCarlo",
    "bgmiv.intervals": "Interval",
    "bgmiv.registry": "load",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return VERSION
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    from bgmiv.registry import METHODS

    for method in METHODS.values():
        if method.estimator == name:
            return method.estimator_class()
    raise AttributeError(f"module 'bgmiv' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
