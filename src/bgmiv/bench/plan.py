"""What to run: a plan names sweeps, a sweep lists runs, and a run is one frozen specification."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from bgmiv.designs import find_design
from bgmiv.designs.base import check_draw
from bgmiv.errors import ConfigError
from bgmiv.registry import find_method, method_names, nearest_preset, preset_names

__all__ = [
    "Exhibit", "Plan", "RunKey", "RunSpec", "Sweep", "canonical_json", "identify", "load_plan", "paper_exhibits",
    "ready_plans",
]  # fmt: skip

PAPER = "paper"
"""What the plans of the paper's tables and figures begin with."""


def canonical_json(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, order=True)
class RunSpec:
    """One fit: which data, which method, which seed.

    The seed draws the sample and, as a JAX key, starts the method.

    Example:
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


@dataclass(frozen=True, order=True)
class RunKey:
    """What identifies a stored run: equal keys give equal numbers on one machine.

    Example:
        >>> len(identify(RunSpec("demand", 500, 0.5, "tsls", "default", seed=1)).run_id)
        16
    """

    spec: RunSpec
    method_version: int  # the method's :meth:`~bgmiv.registry.Method.version_of` its preset
    design_version: int  # the design's :attr:`~bgmiv.designs.base.DesignEntry.algorithm_version`

    @property
    def run_id(self) -> str:
        """A stable name: the first 16 hex digits of the SHA-256 of all of it."""
        content = {**asdict(self.spec), "method_version": self.method_version, "design_version": self.design_version}
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]


def identify(spec: RunSpec) -> RunKey:
    """The key of a specification under this version's algorithms; unknown designs and methods are a ConfigError.

    Example:
        >>> identify(RunSpec("demand", 500, 0.5, "tsls", "default", seed=1)).spec.seed
        1
    """
    return RunKey(spec, find_method(spec.method).version_of(spec.preset), find_design(spec.design).algorithm_version)


@dataclass(frozen=True)
class Sweep:
    """Every combination of its lists, each with `repeats` consecutive seeds from `seed`.

    A method without one of the presets takes its nearest (`bgmiv.registry.nearest_preset`).

    Raises:
        ConfigError: a name is not known, a list is empty, or a number is out of range.

    Example:
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
        kinds = {"designs": str, "n": int, "rho": float, "methods": str, "presets": str}
        for name, kind in kinds.items():
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise ConfigError(f"{name} must be a list with at least one entry, got {values!r}")
            object.__setattr__(self, name, tuple(_typed(name, value, kind) for value in values))
        for design in self.designs:
            find_design(design)
        known = {"method": method_names(), "preset": preset_names()}
        for what, names in known.items():
            for value in getattr(self, f"{what}s"):
                _known(what, value, names)
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

    Example:
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
        """A part of the plan: only these sizes, levels, methods or presets, and the first seeds of each cell.

        Args:
            fraction: share of each cell's repeats, rounded up.
            repeats: maximum number of repeats a cell.
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


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper.

    Args:
        name: its number in the paper, as in `table-1`; its plan is `paper/table-1`.
        label: its label in the paper's source.
        kind: how it is shown (`benchmarks/report/paper.py`).
        title: what it shows.
        design: the design it is about; None for tables of settings and resources.
        sweeps: the fits it needs; some exhibits share them.
    """

    name: str
    label: str
    kind: str
    title: str
    design: str | None
    sweeps: tuple[Sweep, ...]

    @property
    def plan(self) -> Plan:
        """Its fits as a plan."""
        number = self.name.replace("-", " ").capitalize()
        return Plan(f"{PAPER}/{self.name}", f"{number} of the paper: {self.title}", self.sweeps)


@cache
def paper_exhibits() -> tuple[Exhibit, ...]:
    """Every table and figure of the paper's results, settings and resources, in the paper's order.

    Example:
        >>> [exhibit.name for exhibit in paper_exhibits()][:3]
        ['figure-2', 'table-1', 'figure-3']
    """
    content = tomllib.loads((_folder() / f"{PAPER}.toml").read_text(encoding="utf-8"))
    fits = {name: tuple(Sweep(**sweep) for sweep in sweeps) for name, sweeps in content["fits"].items()}
    return tuple(
        Exhibit(
            name, entry["label"], entry["kind"], entry["title"], entry.get("design"), fits.get(entry.get("fits"), ())
        )
        for name, entry in content["exhibit"].items()
    )


def _folder() -> Path:
    return Path(str(files("bgmiv.bench"))) / "plans"


@cache
def ready_plans() -> tuple[str, ...]:
    """The names of the plans that come with the package: the paper's first.

    Example:
        >>> "noisy" in ready_plans()
        True
    """
    paper = (exhibit.plan.name for exhibit in paper_exhibits() if exhibit.sweeps)
    return (*paper, *sorted(path.stem for path in _folder().glob("*.toml") if path.stem != PAPER))


def load_plan(source: str | Path) -> Plan:
    """A ready plan by name, or a plan from a TOML file.

    The file holds `title` and one `[[sweep]]` table a sweep, with the fields of :class:`Sweep`.

    Raises:
        ConfigError: there is no such plan, or the file is not a plan; the message names the entry.

    Example:
        >>> load_plan("paper/table-1").sweeps[0].n
        (1000, 5000, 10000)
    """
    path = Path(source)
    if str(source) in ready_plans():
        for exhibit in paper_exhibits():
            if str(source) == exhibit.plan.name:
                return exhibit.plan
        path = _folder() / f"{source}.toml"
    elif not path.is_file():
        raise ConfigError(
            f"there is no plan {str(source)!r}: no such file, and the ready plans are {', '.join(ready_plans())}"
        )
    name = path.stem
    content = _toml(path)
    _no_others(content, ("title", "sweep"), str(path))
    sweeps = content.get("sweep")
    if not isinstance(sweeps, list) or not sweeps or not all(isinstance(entry, dict) for entry in sweeps):
        raise ConfigError(f"{path} has no [[sweep]] table")
    title = content.get("title", name)
    if not isinstance(title, str):
        raise ConfigError(f"{path}: title must be a text, got {title!r}")
    allowed = tuple(item.name for item in fields(Sweep))
    found = []
    for position, entry in enumerate(sweeps, start=1):
        place = f"{path}, sweep {position}"
        _no_others(entry, allowed, place)
        if missing := [needed for needed in ("designs", "n", "rho", "methods") if needed not in entry]:
            raise ConfigError(f"{place}: {', '.join(missing)} missing")
        try:
            found.append(Sweep(**entry))
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
    return Plan(name, title, tuple(found))


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a plan: {error}") from error


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
