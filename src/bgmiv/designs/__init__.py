"""Simulated problems with a known structural function, and real data with a published estimate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bgmiv.designs.base import Design, StructuralGrid
from bgmiv.designs.confounded import BinaryConfoundedDesign, DemandConfoundedDesign, LinearGaussianDesign
from bgmiv.designs.demand import DemandDesign
from bgmiv.designs.discrete import BinaryOutcomeDesign, BinaryTreatmentDesign, CategoricalTreatmentDesign
from bgmiv.designs.empirical import EmpiricalData, Published, empirical_names, load_empirical
from bgmiv.designs.lowdim import CURVES, LowDimDesign
from bgmiv.designs.mnist import MnistDesign, MnistHDDesign
from bgmiv.designs.vector_proxy import VectorProxyDesign
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
    "EmpiricalData",
    "LinearGaussianDesign",
    "LowDimDesign",
    "MnistDesign",
    "MnistHDDesign",
    "Published",
    "StructuralGrid",
    "VectorProxyDesign",
    "design_names",
    "empirical_names",
    "load_empirical",
    "make_design",
]

DESIGNS: dict[str, Callable[[], Design]] = {
    "demand": DemandDesign,
    "vector-proxy": VectorProxyDesign,
    "mnist": MnistDesign,
    "mnist-hd": MnistHDDesign,
    **{f"lowdim-{curve}": partial(LowDimDesign, curve) for curve in CURVES},
    "linear-gaussian": LinearGaussianDesign,
    "demand-confounded": DemandConfoundedDesign,
    "binary-confounded": BinaryConfoundedDesign,
    "binary-treatment": BinaryTreatmentDesign,
    "categorical-treatment": CategoricalTreatmentDesign,
    "binary-outcome": BinaryOutcomeDesign,
}


def design_names() -> tuple[str, ...]:
    """The names :func:`make_design` knows.

    >>> design_names()[:3]
    ('demand', 'vector-proxy', 'mnist')
    """
    return tuple(DESIGNS)


def make_design(name: str) -> Design:
    """The design of that name, with the paper's settings.

    >>> make_design("demand").name
    'demand'
    """
    try:
        return DESIGNS[name]()
    except KeyError:
        known = ", ".join(DESIGNS)
        raise ConfigError(f"no design is called {name!r}; the known designs are: {known}") from None
