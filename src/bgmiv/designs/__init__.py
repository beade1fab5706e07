"""Simulated problems with a known structural function, and real data with a published estimate."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from importlib import import_module

from bgmiv.designs.base import Design, DesignEntry, StructuralGrid, with_settings
from bgmiv.designs.demand import DemandConfoundedDesign, DemandDesign, VectorProxyDesign
from bgmiv.designs.empirical import EmpiricalData, Published, empirical_names, load_empirical
from bgmiv.designs.mnist import MnistDesign, MnistHDDesign
from bgmiv.designs.noisy import SHAPES, NoisyDemandDesign, NoisyDesign
from bgmiv.errors import ConfigError

__all__ = [
    "DESIGNS",
    "DemandConfoundedDesign",
    "DemandDesign",
    "Design",
    "DesignEntry",
    "EmpiricalData",
    "MnistDesign",
    "MnistHDDesign",
    "NoisyDemandDesign",
    "NoisyDesign",
    "Published",
    "StructuralGrid",
    "VectorProxyDesign",
    "empirical_names",
    "find_design",
    "load_empirical",
    "make_design",
    "register",
]

DESIGNS: dict[str, DesignEntry] = {}
"""The registered designs by name, in the order of reports."""


def register(*entries: DesignEntry) -> None:
    """Add designs of a module of your own.

    The bench and its worker processes import the modules that the environment variable BGMIV_DESIGNS names, with
    commas between them, when a plan has a design that is not known.

    Example:
        >>> register(DesignEntry("quiet", "Little noise", partial(NoisyDesign, r2=0.9)))
        >>> DESIGNS.pop("quiet").title
        'Little noise'
    """
    DESIGNS.update({entry.name: entry for entry in entries})


register(
    DesignEntry("demand", "Demand design", DemandDesign, unit=1e4),
    DesignEntry("vector-proxy", "High-dimensional vector proxy", VectorProxyDesign, unit=1e4),
    DesignEntry("mnist", "MNIST images", MnistDesign, unit=1e4),
    DesignEntry("mnist-hd", "MNIST images with nuisance covariates", MnistHDDesign, unit=1e4),
    DesignEntry("demand-confounded", "Demand design, strongly confounded", DemandConfoundedDesign, unit=1e4),
    *(
        DesignEntry(f"noisy-{shape}", f"Ten covariates with noise: {shape}", partial(NoisyDesign, shape), unit=None)
        for shape in SHAPES
    ),
    DesignEntry("noisy-demand", "Demand with noise", NoisyDemandDesign, unit=None),
    DesignEntry("noisy-vector", "Vector proxy with noise", partial(NoisyDemandDesign, proxy="vector"), unit=None),
    DesignEntry("noisy-mnist", "MNIST images with noise", partial(NoisyDemandDesign, proxy="image"), unit=None),
)


def find_design(name: str) -> DesignEntry:
    """The entry of a design, also with settings: `"noisy-concave:r2=0.1,errors=heavy-tailed"`.

    Raises:
        ConfigError: no design has that name (the message lists the known ones), or it has no such setting.

    Example:
        >>> find_design("noisy-concave:r2=0.1").title
        'Ten covariates with noise: concave (r2=0.1)'
    """
    known, _, settings = name.partition(":")
    if known not in DESIGNS:
        for module in filter(None, os.environ.get("BGMIV_DESIGNS", "").split(",")):
            import_module(module)
    if known not in DESIGNS:
        raise ConfigError(f"no design is called {known!r}; the known designs are: {', '.join(DESIGNS)}")
    entry = DESIGNS[known]
    if not settings:
        return entry
    design: Design = with_settings(entry.make(), settings)
    if design.name != name:
        raise ConfigError(f"{name!r} is the design {design.name!r}; use that name")
    return replace(entry, name=name, title=f"{entry.title} ({settings})", make=lambda: design)


def make_design(name: str) -> Design:
    """The design of that name, with its usual settings but for those in the name.

    Raises:
        ConfigError: no design has that name (the message lists the known ones), or it has no such setting.

    Example:
        >>> make_design("demand").name, make_design("noisy-linear:partial_r2=0.02").partial_r2
        ('demand', 0.02)
    """
    return find_design(name).make()
