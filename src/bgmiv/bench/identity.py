"""What makes a run this run and no other: its specification, its settings, and the code that runs it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache

from bgmiv.bench.code_version import code_version
from bgmiv.bench.plan import RunSpec, canonical_json
from bgmiv.bench.presets import benchmark_estimator
from bgmiv.designs import make_design

__all__ = ["RunKey", "identify", "identify_all"]


@dataclass(frozen=True)
class RunKey:
    """A run that can be stored: equal keys give equal numbers on one machine.

    Args:
        spec: which data, method, preset and seed.
        config: hash of the method's settings in full.
        code: version of the code that decides the numbers.
    """

    spec: RunSpec
    config: str
    code: str

    @property
    def run_id(self) -> str:
        """A stable name: the first 16 hex digits of the SHA-256 of all of it.

        >>> RunKey(RunSpec("demand", 1000, 0.5, "tsls", "default", seed=0), "c", "v").run_id
        '8ff7e8a8303c1c4d'
        """
        parts = {**asdict(self.spec), "config": self.config, "code": self.code}
        return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:16]


def identify(spec: RunSpec) -> RunKey:
    """The key of a specification under the code that is installed now.

    Raises:
        ConfigError: the specification names an unknown design, method or preset.

    >>> spec = RunSpec("demand", 1000, 0.5, "tsls", "default", seed=0)
    >>> identify(spec) == identify(spec)
    True
    """
    return RunKey(spec, *_settings_and_code(spec.design, spec.method, spec.preset))


def identify_all(specs: Iterable[RunSpec]) -> tuple[RunKey, ...]:
    """The keys of several specifications, in their order."""
    return tuple(identify(spec) for spec in specs)


@cache
def _settings_and_code(design: str, method: str, preset: str) -> tuple[str, str]:
    estimator = benchmark_estimator(design, method, preset)
    # Settings are frozen dataclasses: their text names every field and value.
    config = hashlib.sha256(repr(estimator).encode()).hexdigest()[:16]
    modules = (type(estimator).__module__, type(make_design(design)).__module__, "bgmiv.bench.metrics")
    return config, code_version(modules)
