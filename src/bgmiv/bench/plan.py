"""What to run: a sweep is data. A plan names sweeps, and lists one frozen specification a fit."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from bgmiv.designs import make_design
from bgmiv.designs.base import check_draw
from bgmiv.errors import ConfigError
from bgmiv.estimators.registry import method_names, nearest_preset, preset_names

__all__ = ["Plan", "RunSpec", "Sweep", "canonical_json", "load_plan", "ready_plans"]


def canonical_json(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text.

    >>> canonical_json({"b": 1, "a": 0.5})
    '{"a":0.5,"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, order=True)
class RunSpec:
    """One fit: which data, which method, which seed.

    The seed draws the sample and, as a JAX key, starts the method.

    >>> str(RunSpec("demand", 1000, 0.5, "tsls", "default", seed=0))
    'demand n=1000 rho=0.5 tsls seed 0'
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
    def cell(self) -> tuple[str, int, float, str, str]:
        """All of it but the seed."""
        return (self.design, self.n, self.rho, self.method, self.preset)

    def __str__(self) -> str:
        preset = "" if self.preset == "default" else f" ({self.preset})"
        return f"{self.design} n={self.n} rho={self.rho:g} {self.method}{preset} seed {self.seed}"


@dataclass(frozen=True)
class Sweep:
    """Every combination of its lists, each with ``repeats`` consecutive seeds from ``seed``.

    A method without one of the presets takes its nearest (:func:`~bgmiv.estimators.registry.nearest_preset`).

    Raises:
        ConfigError: a name is not known, a list is empty, or a number is out of range.

    >>> sweep = Sweep(["demand"], n=[100, 200], rho=[0.5], methods=["tsls"], repeats=3, seed=7)
    >>> len(sweep.specs()), [spec.seed for spec in sweep.specs()[:3]]
    (6, [7, 8, 9])
    """

    designs: Sequence[str]
    n: Sequence[int]
    rho: Sequence[float]
    methods: Sequence[str]
    presets: Sequence[str] = ("default",)
    repeats: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("designs", "n", "rho", "methods", "presets"):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise ConfigError(f"{name} must be a list with at least one entry, got {values!r}")
            object.__setattr__(self, name, tuple(values))
        for name, kind in (("designs", str), ("methods", str), ("presets", str), ("n", int), ("rho", float)):
            for value in getattr(self, name):
                _typed(name, value, kind)
        for design in self.designs:
            make_design(design)
        for method in self.methods:
            _known("method", method, method_names())
        for preset in self.presets:
            _known("preset", preset, preset_names())
        if _typed("repeats", self.repeats, int) < 1:
            raise ConfigError(f"repeats is {self.repeats}; choose 1 or more")
        for size, level in product(self.n, self.rho):
            check_draw(size, level, _typed("seed", self.seed, int))

    def specs(self) -> tuple[RunSpec, ...]:
        """Its runs, each once."""
        found = (
            RunSpec(design, size, level, method, nearest_preset(method, preset), self.seed + repeat)
            for design, size, level, method, preset, repeat in product(
                self.designs, self.n, self.rho, self.methods, self.presets, range(self.repeats)
            )
        )
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Plan:
    """Sweeps under a name.

    >>> plan = Plan("mine", "two seeds", (Sweep(["demand"], [100], [0.1, 0.5], ["tsls"], repeats=2),))
    >>> len(plan.specs), len(plan.part(fraction=0.5).specs), len(plan.part(rho=[0.5]).specs)
    (4, 2, 2)
    """

    name: str
    title: str
    sweeps: tuple[Sweep, ...]

    @property
    def specs(self) -> tuple[RunSpec, ...]:
        """The runs of all sweeps, each once."""
        return tuple(dict.fromkeys(spec for sweep in self.sweeps for spec in sweep.specs()))

    def part(
        self,
        *,
        fraction: float = 1.0,
        repeats: int | None = None,
        n: Sequence[int] | None = None,
        rho: Sequence[float] | None = None,
        methods: Sequence[str] | None = None,
        presets: Sequence[str] | None = None,
    ) -> Plan:
        """A part of the plan: some sizes, levels, methods or presets, and the first seeds of each cell.

        Args:
            fraction: share of each cell's repeats, rounded up.
            repeats: at most this many repeats a cell.
            n, rho, methods, presets: only these.

        Raises:
            ConfigError: nothing is left, or an entry is in no sweep of the plan.
        """
        if not 0.0 < fraction <= 1.0:
            raise ConfigError(f"fraction is {fraction}; choose a number above 0, at most 1")
        if repeats is not None and repeats < 1:
            raise ConfigError(f"repeats is {repeats}; choose 1 or more")
        chosen = {"n": n, "rho": rho, "methods": methods, "presets": presets}
        for name, wanted in chosen.items():
            planned = {value for sweep in self.sweeps for value in getattr(sweep, name)}
            for value in wanted or ():
                if value not in planned:
                    listed = ", ".join(str(value) for value in sorted(planned))
                    raise ConfigError(f"the plan {self.name!r} has no {name} {value}; it has {listed}")
        sweeps = []
        for sweep in self.sweeps:
            kept: dict[str, Any] = {
                name: tuple(value for value in getattr(sweep, name) if wanted is None or value in wanted)
                for name, wanted in chosen.items()
            }
            if all(kept.values()):
                count = max(1, math.ceil(round(fraction * sweep.repeats, 9)))
                sweeps.append(replace(sweep, **kept, repeats=min(count, repeats or count)))
        if not sweeps:
            raise ConfigError(f"no sweep of the plan {self.name!r} has all of what was asked for")
        return replace(self, sweeps=tuple(sweeps))


@cache
def ready_plans() -> tuple[str, ...]:
    """The names of the plans that come with the package.

    >>> "vector-proxy" in ready_plans()
    True
    """
    folder = files("bgmiv.bench") / "plans"
    return tuple(sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml")))


def load_plan(source: str | Path) -> Plan:
    """A ready plan by name, or a plan from a TOML file.

    The file holds ``title`` and one ``[[sweep]]`` table a sweep, with the fields of :class:`Sweep`.

    Raises:
        ConfigError: there is no such plan, or the file is not a plan; the message names the entry.

    >>> load_plan("vector-proxy").sweeps[0].n
    (1000, 5000, 10000)
    """
    if str(source) in ready_plans():
        text = (files("bgmiv.bench") / "plans" / f"{source}.toml").read_text(encoding="utf-8")
        return _parse(text, str(source), f"the ready plan {source!r}")
    path = Path(source)
    if not path.is_file():
        raise ConfigError(
            f"there is no plan {str(source)!r}: no such file, and the ready plans are {', '.join(ready_plans())}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a plan: {error}") from error
    return _parse(text, path.stem, str(path))


def _parse(text: str, name: str, where: str) -> Plan:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from error
    _no_others(content, ("title", "sweep"), where)
    sweeps = content.get("sweep")
    if not isinstance(sweeps, list) or not sweeps or not all(isinstance(entry, dict) for entry in sweeps):
        raise ConfigError(f"{where} has no [[sweep]] table")
    title = content.get("title", name)
    if not isinstance(title, str):
        raise ConfigError(f"{where}: title must be a text, got {title!r}")
    allowed = tuple(item.name for item in fields(Sweep))
    found = []
    for position, entry in enumerate(sweeps, start=1):
        place = f"{where}, sweep {position}"
        _no_others(entry, allowed, place)
        missing = [name for name in ("designs", "n", "rho", "methods") if name not in entry]
        if missing:
            raise ConfigError(f"{place}: {', '.join(missing)} missing")
        try:
            found.append(Sweep(**entry))
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
    return Plan(name, title, tuple(found))


def _no_others(content: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for name in content:
        if name not in allowed:
            raise ConfigError(f"{where}: unknown entry {name!r}; known entries: {', '.join(allowed)}")


def _typed(name: str, value: Any, kind: type) -> Any:
    accepted = (int, float) if kind is float else (kind,)
    if isinstance(value, bool) or not isinstance(value, accepted):
        words = {int: "a whole number", float: "a number", str: "a name"}[kind]
        raise ConfigError(f"{name} holds {value!r}; it takes {words}")
    return value


def _known(what: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise ConfigError(f"no {what} is called {name!r}; the known {what}s are: {', '.join(names)}")
