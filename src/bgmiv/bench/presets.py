"""The settings a benchmark fixes on top of a method's preset."""

from __future__ import annotations

from dataclasses import replace

from bgmiv.data.scaling import FixedAffine, Identity, RoleScaling
from bgmiv.estimators.base import Estimator
from bgmiv.estimators.bgmiv import BGMIVConfig
from bgmiv.estimators.registry import make_estimator

__all__ = ["PAPER_FIXED_SCALING", "benchmark_estimator"]

PAPER_FIXED_SCALING = RoleScaling(
    outcome=FixedAffine(-292.1, 158.0),
    treatment=FixedAffine(17.779, 3.7),
    covariates=Identity(),
    instruments=Identity(),
)
"""The paper's scaling for its high-dimensional designs: x ↦ (x − 17.779)/3.7 and y ↦ (y + 292.1)/158."""

_FIXED_SCALING = ("vector-proxy", "mnist", "mnist-hd")


def benchmark_estimator(design_name: str, method: str, preset: str = "default") -> Estimator:
    """The estimator of that name and preset, as the benchmark of that design runs it.

    The only difference from :func:`bgmiv.estimators.registry.make_estimator`: with the paper's presets the
    vector-proxy and image benchmarks use the paper's fixed scaling (:data:`PAPER_FIXED_SCALING`).

    >>> benchmark_estimator("vector-proxy", "bgm-iv", "paper").scaling == PAPER_FIXED_SCALING
    True
    """
    estimator = make_estimator(method, preset)
    if design_name in _FIXED_SCALING and preset.startswith("paper") and isinstance(estimator, BGMIVConfig):
        return replace(estimator, scaling=PAPER_FIXED_SCALING)
    return estimator
