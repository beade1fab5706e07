"""What to run: a plan names sweeps, a sweep lists runs, and a run is one frozen specification."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from bgmiv.designs import find_design
from bgmiv.designs.base import check_draw
from bgmiv.errors import ConfigError
from bgmiv.registry import find_method, nearest_preset

__all__ = [
    "PLANS", "Plan", "RunKey", "RunSpec", "Sweep", "canonical_json", "identify", "load_plan", "ready_plans",
    "todays_key",
]  # fmt: skip

PLANS = Path(str(files("bgmiv.bench"))) / "plans"
"""The folder of the ready plans."""


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
        object.__setattr__(self, "rho", float(self.rho))

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


def todays_key(spec: RunSpec) -> RunKey | None:
    """The same; None for designs and methods that this version does not know."""
    with suppress(ConfigError):
        return identify(spec)
    return None


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
        for method, preset in product(self.methods, self.presets):
            nearest_preset(method, preset)
        if _typed("repeats", self.repeats, int) < 1:
            raise ConfigError(f"repeats is {self.repeats}; choose 1 or more")
        for size, level in product(self.n, self.rho):
            check_draw(size, level, _typed("seed", self.seed, int))

    def specs(self) -> tuple[RunSpec, ...]:
        """Its runs, each once."""
        specs = (
            RunSpec(design, size, level, method, nearest_preset(method, preset), self.seed + repeat)
            for design, size, level, method, preset, repeat in product(
                self.designs, self.n, self.rho, self.methods, self.presets, range(self.repeats)
            )
        )
        return tuple(dict.fromkeys(specs))


@dataclass(frozen=True)
class Plan:
    """Sweeps under a name.

    Example:
        >>> plan = Plan("mine", "two seeds", (Sweep(["demand"], [100], [0.1, 0.5], ["tsls"], repeats=2),))
        >>> len(plan.specs), len(plan.part(repeats=1).specs), len(plan.part(rho=[0.5]).specs)
        (4, 2, 2)
    """

    name: str
    title: str
    sweeps: tuple[Sweep, ...]

    @property
    def specs(self) -> tuple[RunSpec, ...]:
        """The runs of all sweeps, each once."""
        return tuple(dict.fromkeys(spec for sweep in self.sweeps for spec in sweep.specs()))

    @property
    def keys(self) -> list[RunKey]:
        """Their keys under this version's algorithms."""
        return [identify(spec) for spec in self.specs]

    def part(
        self,
        *,
        repeats: int | None = None,
        n: Sequence[int] | None = None,
        rho: Sequence[float] | None = None,
        methods: Sequence[str] | None = None,
        presets: Sequence[str] | None = None,
    ) -> Plan:
        """A part of the plan: only these sizes, levels, methods or presets, and the first seeds of each cell.

        Args:
            repeats: maximum number of repeats a cell.
            n, rho, methods, presets: only these.

        Raises:
            ConfigError: nothing is left, or an entry is in no sweep of the plan.
        """
        lists: dict[str, Any] = {"n": n, "rho": rho, "methods": methods, "presets": presets}
        chosen = {name: wanted for name, wanted in lists.items() if wanted is not None}
        for name, wanted in chosen.items():
            planned = sorted({value for sweep in self.sweeps for value in getattr(sweep, name)})
            for value in wanted:
                if value not in planned:
                    raise ConfigError(
                        f"the plan {self.name!r} has no {name} {value}; it has {', '.join(map(str, planned))}"
                    )
        sweeps = []
        for sweep in self.sweeps:
            kept: dict[str, Any] = {
                name: tuple(value for value in getattr(sweep, name) if value in wanted)
                for name, wanted in chosen.items()
            }
            if all(kept.values()):
                kept["repeats"] = sweep.repeats if repeats is None else min(sweep.repeats, repeats)
                sweeps.append(replace(sweep, **kept))
        if not sweeps:
            raise ConfigError(f"no sweep of the plan {self.name!r} has all of what was asked for")
        return replace(self, sweeps=tuple(sweeps))


def ready_plans() -> tuple[str, ...]:
    """The names of the plans that come with the package: the paper's first.

    Example:
        >>> "noisy" in ready_plans()
        True
    """
    return tuple(_ready_plans())


@cache
def _ready_plans() -> dict[str, Plan]:
    """Those of the paper, one for each table and figure that needs fits, and those of other files."""
    content = _toml(PLANS / "paper.toml")
    plans = {}
    for name, entry in content["exhibit"].items():
        if "fits" in entry:
            title = f"{name.replace('-', ' ').capitalize()} of the paper: {entry['title']}"
            sweeps = tuple(Sweep(**sweep) for sweep in content["fits"][entry["fits"]])
            plans[f"paper/{name}"] = Plan(f"paper/{name}", title, sweeps)
    others = [_read_plan(path) for path in sorted(PLANS.glob("*.toml")) if path.stem != "paper"]
    return plans | {plan.name: plan for plan in others}


def load_plan(source: str | Path) -> Plan:
    """A ready plan by name, or a plan from a TOML file.

    The file holds `title` and one `[[sweep]]` table a sweep, with the fields of :class:`Sweep`.

    Raises:
        ConfigError: there is no such plan, or the file is not a plan; the message names the entry.

    Example:
        >>> load_plan("paper/table-1").sweeps[0].n
        (1000, 5000, 10000)
    """
    ready = _ready_plans()
    if str(source) in ready:
        return ready[str(source)]
    if not Path(source).is_file():
        raise ConfigError(f"there is no plan {str(source)!r}: no such file, and the ready plans are {', '.join(ready)}")
    return _read_plan(Path(source))


def _read_plan(path: Path) -> Plan:
    content = _toml(path)
    title, entries = content.pop("title", path.stem), content.pop("sweep", None)
    if not isinstance(title, str) or content:
        raise ConfigError(f"{path} holds {', '.join(content) or f'the title {title!r}'}; it takes a title and sweeps")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path} has no [[sweep]] table")
    sweeps = []
    for position, entry in enumerate(entries, start=1):
        try:
            sweeps.append(Sweep(**entry))
        # Python names an entry that is unknown or missing.
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{path}, sweep {position}: {error}") from error
    return Plan(path.stem, title, tuple(sweeps))


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    # Text of another encoding and what is no TOML are ValueErrors.
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as a plan in TOML: {error}") from error


def _typed(name: str, value: Any, kind: type) -> Any:
    accepted = (int, float) if kind is float else (kind,)
    if isinstance(value, bool) or not isinstance(value, accepted):
        expected = {int: "a whole number", float: "a number", str: "a name"}[kind]
        raise ConfigError(f"{name} holds {value!r}; it takes {expected}")
    return value
