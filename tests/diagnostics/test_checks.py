"""All checks together: which appear, in which order, and when they warn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from bgmiv import TSLS
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Encoded, Query, Rows
from bgmiv.diagnostics.checks import Diagnosis, diagnose
from bgmiv.diagnostics.explanations import CHECKS
from bgmiv.errors import WeakInstrumentWarning
from bgmiv.fitted import FitEvidence, HeldOutPredictions
from bgmiv.intervals import Source

LEVELS = np.array(["low", "middle", "high"])
GOOD = FitEvidence(
    n_held_out=400,
    outcome_explained=0.9,
    linear_explained=0.9,
    flexible_explained=0.9,
    moment_risk=0.0,
    linear_moment_risk=0.0,
    treatment_moment_risk=0.0,
    first_stage_gain=0.3,
)


def sample(strength: float = 1.0, *, n: int = 300, q: int = 2, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    u = rng.normal(size=n)
    w, v = rng.normal(size=(n, q)), rng.normal(size=(n, 2))
    x = strength * w.sum(axis=1) + v[:, 0] + u
    return {"outcome": 2.0 * x + v[:, 1] - u, "treatment": x, "instruments": w, "covariates": v}


@dataclass(frozen=True, eq=False)
class Line:
    """g(x, v) = slope x + v1, as a method that holds the first 100 rows out."""

    data: IVData
    slope: float = 2.0
    evidence: FitEvidence | None = None
    usage: dict[str, float] | None = None
    n_held_out: int = 0
    broken: bool = False

    interval_kind = ""
    encoding_key = None

    @property
    def schema(self) -> Any:
        return self.data.schema

    def encode(self, covariates: Any) -> Encoded:
        return (covariates,)

    def at(self, query: Query) -> np.ndarray:
        values = self.slope * query.treatment + query.rows.covariates[:, 1].astype(float)
        if not self.schema.outcome.discrete:
            return np.full_like(values, np.nan) if self.broken else values
        # The same shares of the outcome's levels everywhere.
        shares = np.bincount(self.data.outcome.astype(int)) / self.data.n_rows
        return np.broadcast_to(shares, (*values.shape, len(shares)))

    def factors(self, query: Query) -> tuple[Source, ...]:
        return ()

    average_factors = factors
    max_factor_rows = 20_000

    def in_support(self, query: Query) -> np.ndarray:
        return np.ones(query.shape, bool)

    def held_out_predictions(self, data: IVData, rows: Rows, max_rows: int) -> HeldOutPredictions | None:
        some = np.arange(self.n_held_out)
        values = self.at(Query(data.treatment[None], rows).take(some))[0]
        return HeldOutPredictions(some, values) if len(some) else None

    def latent_usage(self, data: IVData, rows: Rows, seed: int) -> dict[str, float] | None:
        return self.usage


def checked(line: Line, other: Line | None = None) -> Diagnosis:
    return diagnose(
        line.data, Rows(line.data.covariates, line.data.weights), line, no_instrument=other, level=0.95, seed=0
    )


def test_every_check_in_order() -> None:
    data = IVData.from_arrays(**sample())
    line = Line(data, evidence=GOOD, usage={"shared.outcome": 0.4}, n_held_out=100)
    found = checked(line, replace(line, slope=1.7))
    assert [check.key for check in found.checks] == list(CHECKS)
    assert found.severity == "note"
    assert found["moment-test"].numbers["rows"] == 100.0
    assert "held-out rows" in found["moment-test"].value
    assert found["nonlinear-first-stage"].numbers == {"gain": 0.3}
    assert found["linear-comparison"].severity == "good"
    # The slope times the change of treatment, which the label names.
    change = found["linear-comparison"].numbers
    assert found["no-instrument"].numbers["difference"] == pytest.approx(0.3 * (change["t1"] - change["t0"]))


def test_findings_against_a_fit() -> None:
    data = IVData.from_arrays(**sample())
    weak = replace(GOOD, first_stage_gain=0.001)
    found = checked(Line(data, slope=-2.0, evidence=weak, usage={"shared.outcome": 0.0}), Line(data, slope=-2.0))
    severities = {check.key: check.severity for check in found.checks}
    assert severities["nonlinear-first-stage"] == severities["verdict"] == severities["moment-test"] == "failed"
    assert severities["no-instrument"] == severities["linear-comparison"] == severities["latent-usage"] == "doubtful"
    assert found["verdict"].reading.startswith("This fit failed its held-out checks; do not use it. The instruments")
    broken = checked(Line(data, broken=True))["moment-test"]
    assert (broken.severity, broken.value) == ("failed", "not a number")


def test_averages_are_weighted() -> None:
    data = IVData.from_arrays(**sample())
    weighted = replace(data, weights=np.where(np.arange(300) < 150, 1.9, 0.1))

    @dataclass(frozen=True, eq=False)
    class Varying(Line):
        """Effects of 1 in the first half of the rows and 3 in the second."""

        def at(self, query: Query) -> np.ndarray:
            first = np.isin(query.rows.covariates[:, 0], data.covariates[:150, 0])
            return np.asarray(np.where(first, 1.0, 3.0) * query.treatment)

    numbers = checked(Varying(weighted))["linear-comparison"].numbers
    assert numbers["effect"] == pytest.approx(1.1 * (numbers["t1"] - numbers["t0"]))


@pytest.mark.parametrize(("strength", "severity"), [(0.0, "failed"), (0.2, "doubtful")])
def test_weak_instruments_warn(strength: float, severity: str) -> None:
    with pytest.warns(WeakInstrumentWarning, match="too weak for usual intervals"):
        model = TSLS().fit(**sample(strength, q=1))
    found = model.diagnose(no_instrument=False)
    assert found.weak_instruments
    assert found["effective-f"].severity == found["robust-f"].severity == severity
    numbers = found["effective-f"].numbers
    assert (10.0 < numbers["effective_f"] < numbers["critical"]) == (severity == "doubtful")
    assert strength or found["anderson-rubin"].value == "every number"


def test_strong_and_valid_instruments() -> None:
    found = TSLS().fit(**sample()).diagnose()
    assert not found.weak_instruments
    assert found.severity == "note"
    assert "held-out rows" in found["moment-test"].value
    assert "itself" in found["linear-comparison"].reading
    numbers = found["no-instrument"].numbers
    assert numbers["difference"] == pytest.approx(numbers["linear_difference"], rel=1e-6)
    # There are no networks and no latents to judge.
    absent = ("nonlinear-first-stage", "latent-usage")
    assert [check.key for check in found.checks] == [key for key in CHECKS if key not in absent]


def test_an_instrument_with_a_direct_effect_is_found() -> None:
    data = sample()
    data["outcome"] = data["outcome"] + data["instruments"][:, 0]
    found = TSLS().fit(**data).diagnose(no_instrument=False)
    assert found["overidentification"].severity == "failed"
    assert found["anderson-rubin"].value == "empty: no effect fits"
    assert found["anderson-rubin"].severity == "doubtful"
    assert found["moment-test"].numbers["p"] < 0.05


def test_levels_of_the_treatment() -> None:
    data = sample()
    several = TSLS().fit(**data | {"treatment": LEVELS[np.digitize(data["treatment"], [-1.0, 1.0])]}).diagnose()
    assert several.linear is None
    assert "the weakest" in several["effective-f"].value
    assert several["no-instrument"].labels["change"].startswith("from 'middle' to")
    binary = TSLS().fit(**data | {"treatment": data["treatment"] > 0}).diagnose(no_instrument=False)
    assert binary.linear is not None
    assert binary["linear-comparison"].numbers["t1"] == 1.0


def test_levels_of_the_outcome() -> None:
    data = sample()
    line = Line(IVData.from_arrays(**data | {"outcome": LEVELS[np.digitize(data["outcome"], [-2.0, 2.0])]}))
    found = checked(line, line)
    assert found.linear is None
    assert found["moment-test"].severity != "good"
    assert found["endogeneity"].numbers["robust_p"] < 0.05
    assert found["no-instrument"].numbers["difference"] == 0.0
