"""Simulated problems with a known structural function, and real data with a published estimate."""

from __future__ import annotations

from functools import partial

from bgmiv.designs.base import Design, DesignEntry, StructuralGrid
from bgmiv.designs.demand import DemandConfoundedDesign, DemandDesign, VectorProxyDesign
from bgmiv.designs.discrete import (
    BinaryConfoundedDesign,
    BinaryOutcomeDesign,
    BinaryTreatmentDesign,
    CategoricalTreatmentDesign,
)
from bgmiv.designs.empirical import EmpiricalData, Published, empirical_names, load_empirical
from bgmiv.designs.lowdim import LinearGaussianDesign, LowDimDesign
from bgmiv.designs.mnist import MnistDesign, MnistHDDesign
from bgmiv.errors import ConfigError

__all__ = [
    "DESIGNS",
    "BinaryConfoundedDesign",
    "BinaryOutcomeDesign",
    "BinaryTreatmentDesign",
    "CategoricalTreatmentDesign",
    "DemandConfoundedDesign",
    "DemandDesign",
    "Design",
    "DesignEntry",
    "EmpiricalData",
    "LinearGaussianDesign",
    "LowDimDesign",
    "MnistDesign",
    "MnistHDDesign",
    "Published",
    "StructuralGrid",
    "VectorProxyDesign",
    "empirical_names",
    "load_empirical",
    "make_design",
]

_ENTRIES = (
    DesignEntry("demand", "Demand design", DemandDesign, unit=1e4),
    DesignEntry("vector-proxy", "High-dimensional vector proxy", VectorProxyDesign, unit=1e4),
    DesignEntry("mnist", "MNIST images", MnistDesign, unit=1e4),
    DesignEntry("mnist-hd", "MNIST images with nuisance covariates", MnistHDDesign, unit=1e4),
    DesignEntry("demand-confounded", "Demand design, strongly confounded", DemandConfoundedDesign, unit=1e4),
    DesignEntry("binary-confounded", "Binary treatment, strongly confounded", BinaryConfoundedDesign),
    DesignEntry("binary-treatment", "Binary treatment with a categorical covariate", BinaryTreatmentDesign),
    DesignEntry("categorical-treatment", "Treatment of three levels", CategoricalTreatmentDesign),
    DesignEntry("binary-outcome", "Binary outcome", BinaryOutcomeDesign),
    DesignEntry("linear-gaussian", "Linear Gaussian design", LinearGaussianDesign),
    DesignEntry("lowdim-sin", "Low-dimensional curve: sine", partial(LowDimDesign, "sin")),
    DesignEntry("lowdim-abs", "Low-dimensional curve: absolute value", partial(LowDimDesign, "abs")),
    DesignEntry("lowdim-step", "Low-dimensional curve: step", partial(LowDimDesign, "step")),
    DesignEntry("lowdim-linear", "Low-dimensional curve: line", partial(LowDimDesign, "linear")),
)

DESIGNS: dict[str, DesignEntry] = {entry.name: entry for entry in _ENTRIES}
"""The registered designs by name, in the order of reports."""


def make_design(name: str) -> Design:
    """The design of that name, with the settings of the paper.

    Raises:
        ConfigError: no design has that name; the message lists the known ones.

    Example:
        >>> make_design("demand").name
        'demand'
    """
    if name not in DESIGNS:
        raise ConfigError(f"no design is called {name!r}; the known designs are: {', '.join(DESIGNS)}")
    return DESIGNS[name].make()
