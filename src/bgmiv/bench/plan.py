"""What to run: one frozen specification a fit, and the plan that lists them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from bgmiv.designs import make_design
from bgmiv.designs.base import check_draw
from bgmiv.errors import ConfigError
from bgmiv.estimators.registry import method_names, preset_names

__all__ = ["RunSpec", "canonical_json", "make_plan"]


def canonical_json(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text.

    >>> canonical_json({"b": 1, "a": 0.5})
    '{"a":0.5,"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class RunSpec:
    """One fit: which data, which method, which seed.

    The seed draws the sample and, as a JAX key, starts the method.

    >>> spec = RunSpec("demand", 1000, 0.5, "tsls", "default", seed=0)
    >>> spec.run_id
    '40c16767e1e1255d'
    """

    design: str
    n: int
    rho: float
    method: str
    preset: str
    seed: int

    def __post_init__(self) -> None:
        # 1 and 1.0 must name the same run.
        object.__setattr__(self, "n", int(self.n))
        object.__setattr__(self, "rho", float(self.rho))
        object.__setattr__(self, "seed", int(self.seed))

    @property
    def run_id(self) -> str:
        """A stable name: the first 16 hex digits of the SHA-256 of the canonical JSON."""
        return hashlib.sha256(canonical_json(asdict(self)).encode()).hexdigest()[:16]


def make_plan(
    *,
    design: str,
    n: Sequence[int],
    rho: Sequence[float],
    methods: Sequence[str],
    preset: str,
    repeats: int,
    seed: int,
) -> tuple[RunSpec, ...]:
    """Every combination of size, confounding and method, with ``repeats`` consecutive seeds from ``seed``.

    Raises:
        ConfigError: a name is not known, or a number is out of range.

    >>> plan = make_plan(
    ...     design="demand", n=[100, 200], rho=[0.5], methods=["tsls"], preset="default", repeats=3, seed=7
    ... )
    >>> len(plan), [spec.seed for spec in plan[:3]]
    (6, [7, 8, 9])
    """
    make_design(design)
    for method in methods:
        _known("method", method, method_names())
    _known("preset", preset, preset_names())
    if repeats < 1:
        raise ConfigError(f"repeats is {repeats}; choose 1 or more")
    for size, level in product(n, rho):
        check_draw(size, level, seed)
    specs = (
        RunSpec(design, size, level, method, preset, seed + repeat)
        for size, level, method, repeat in product(n, rho, methods, range(repeats))
    )
    return tuple(dict.fromkeys(specs))


def _known(what: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise ConfigError(f"no {what} is called {name!r}; the known {what}s are: {', '.join(names)}")
