"""What one fit gave, as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bgmiv.bench.identity import RunKey
from bgmiv.bench.plan import RunSpec

__all__ = ["Row"]


@dataclass(frozen=True)
class Row:
    """What one fit gave.

    Args:
        design, n, rho, method, preset, seed: the specification (:class:`~bgmiv.bench.plan.RunSpec`).
        config, code: hash of the settings and version of the code (:class:`~bgmiv.bench.identity.RunKey`).
        status: ``"ok"`` or ``"failed"``.
        error: why it failed, empty when it did not.
        attempts: how often it was tried.
        structural_mse, structural_mse_in_support, structural_mse_outside: mean squared structural error over
            the grid and its parts; None when the fit failed or the part has no points.
        seconds, cpu_seconds: wall clock and processor time of fit and grid prediction together.
        batched: how many repeats were trained together; the times are this row's share.
        compilation_cache: whether compiled programs may have come from the disk, so that the times may leave
            compilation out.
        versions: of this package, Python and the libraries that decide the numbers.
        timestamp: when the fit ended, UTC, ISO 8601.
        evidence: what the method itself knew about its fit (:class:`~bgmiv.trust.verdict.FitEvidence`), empty for
            methods that give none and for rows from before there was any.
    """

    design: str
    n: int
    rho: float
    method: str
    preset: str
    seed: int
    config: str
    code: str
    status: Literal["ok", "failed"]
    error: str
    attempts: int
    structural_mse: float | None
    structural_mse_in_support: float | None
    structural_mse_outside: float | None
    seconds: float
    cpu_seconds: float
    batched: int
    compilation_cache: bool
    versions: Mapping[str, str] = field(hash=False)
    timestamp: str
    evidence: Mapping[str, float | int | None] = field(default_factory=dict, hash=False)

    @property
    def spec(self) -> RunSpec:
        """The specification this row answers."""
        return RunSpec(self.design, self.n, self.rho, self.method, self.preset, self.seed)

    @property
    def key(self) -> RunKey:
        """The run this row answers."""
        return RunKey(self.spec, self.config, self.code)
