from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest

from bgmiv.bench import evaluate as module
from bgmiv.bench.evaluate import Query, can_batch, evaluate, failed_row, run_one, run_together
from bgmiv.bench.identity import identify
from bgmiv.bench.plan import RunSpec
from bgmiv.bench.presets import PAPER_FIXED_SCALING, benchmark_estimator
from bgmiv.errors import ConfigError, DataError, DivergedError, FitInterrupted
from bgmiv.estimators.registry import make_estimator
from bgmiv.trust.verdict import FitEvidence, Verdict, judge

SPEC = RunSpec("demand", 200, 0.5, "tsls", "default", 0)


@dataclass(frozen=True)
class Constant:
    """A method that predicts one value everywhere, or raises it."""

    value: Any
    verdict: Verdict | None = None

    def fit(self, *_: Any) -> Constant:
        if isinstance(self.value, BaseException):
            raise self.value
        return self

    def predict(self, treatment: np.ndarray, covariates: Any) -> np.ndarray:
        return np.full(len(treatment), self.value)


@dataclass(frozen=True)
class Together:
    """A method that can train repeats together; the last of them is broken."""

    values: tuple[Any, ...]

    def fit_many(self, samples: Any, keys: Any, reporter: Any) -> Any:
        assert len(samples) == len(keys) == len(self.values)
        for i, value in enumerate(self.values):
            if isinstance(value, DivergedError):
                yield value
            else:
                yield Constant(value, judge(FitEvidence(n_held_out=100 + i))).fit()


def use(monkeypatch: pytest.MonkeyPatch, estimator: Any) -> None:
    monkeypatch.setattr(module, "benchmark_estimator", lambda *_: estimator)


def test_a_row_holds_what_was_measured() -> None:
    row = run_one(SPEC)
    assert row.status == "ok"
    assert row.error == ""
    assert row.spec == SPEC
    assert row.key == identify(SPEC)
    assert (row.attempts, row.batched) == (1, 1)
    parts = (row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)
    assert all(part is not None and part > 0 for part in parts)
    assert parts[0] == pytest.approx((2142 * parts[1] + 658 * parts[2]) / 2800)  # type: ignore[operator]
    assert row.seconds > 0
    assert row.cpu_seconds > 0
    # The tests keep compiled programs on disk.
    assert row.compilation_cache is True
    assert {"bgmiv", "jax", "equinox", "optax", "numpy", "python"} <= set(row.versions)


def test_a_row_is_repeatable() -> None:
    assert run_one(SPEC).structural_mse == run_one(SPEC).structural_mse


def test_estimates_at_further_points() -> None:
    query = Query(np.array([15.0, 20.0]), {"time": np.array([5.0, 5.0]), "group": np.array([1.0, 2.0])})
    evaluation = evaluate(SPEC, query)
    assert evaluation.estimates is not None
    assert evaluation.estimates.shape == (2,)
    assert evaluation.row.structural_mse == run_one(SPEC).structural_mse


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_prediction_that_is_no_number_fails_the_row(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    use(monkeypatch, Constant(value))
    row = run_one(SPEC)
    assert row.status == "failed"
    assert "2800 of 2800 grid predictions are not finite" in row.error
    assert row.structural_mse is None


def test_a_fit_that_raises_fails_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Constant(DataError("no good")))
    row = run_one(SPEC)
    assert (row.status, row.error) == ("failed", "DataError: no good")


def test_a_real_failure_is_a_row() -> None:
    row = run_one(RunSpec("vector-proxy", 100, 0.5, "tsls", "default", 0))
    assert row.status == "failed"
    assert "785 covariate columns and 100 rows" in row.error


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), FitInterrupted("stopped")])
def test_an_interrupted_fit_is_no_row(monkeypatch: pytest.MonkeyPatch, interrupt: BaseException) -> None:
    use(monkeypatch, Constant(interrupt))
    with pytest.raises(KeyboardInterrupt):
        run_one(SPEC)


def test_unknown_names_are_errors_not_rows() -> None:
    with pytest.raises(ConfigError):
        run_one(RunSpec("demand", 200, 0.5, "ols", "default", 0))


def test_a_lost_run_has_a_row_too() -> None:
    row = failed_row(identify(SPEC), "the worker process was ended", attempts=2)
    assert (row.spec, row.status, row.attempts, row.seconds) == (SPEC, "failed", 2, 0.0)
    assert row.structural_mse is None


def test_repeats_that_cannot_be_trained_together_are_trained_one_by_one() -> None:
    specs = [replace(SPEC, seed=seed) for seed in range(2)]
    assert not can_batch(SPEC)
    rows = run_together(specs)
    assert [row.structural_mse for row in rows] == [run_one(spec).structural_mse for spec in specs]
    assert [row.batched for row in rows] == [1, 1]


def test_repeats_of_different_cells_are_not_trained_together() -> None:
    with pytest.raises(ConfigError, match="repeats of one cell"):
        run_together([SPEC, replace(SPEC, n=300)])


def test_repeats_trained_together_share_the_time_and_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Together((1.0, np.nan, DataError("no good"))))
    rows = run_together([replace(SPEC, seed=seed) for seed in range(3)])
    assert [row.spec.seed for row in rows] == [0, 1, 2]
    assert [row.batched for row in rows] == [3, 3, 3]
    assert [row.status for row in rows] == ["ok", "failed", "failed"]
    assert "not finite" in rows[1].error
    assert rows[2].error == "DataError: no good"
    assert len({row.seconds for row in rows}) == 1


EVIDENCE = FitEvidence(n_held_out=80, outcome_explained=0.5, moment_risk=float("nan"), outcome_gap=float("inf"))


@pytest.mark.parametrize("value", [1.0, np.nan], ids=["ok", "failed"])
def test_a_row_holds_what_the_method_knew_about_its_fit(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    use(monkeypatch, Constant(value, judge(EVIDENCE)))
    row = run_one(SPEC)
    assert set(row.evidence) == set(asdict(EVIDENCE))
    assert (row.evidence["n_held_out"], row.evidence["outcome_explained"]) == (80, 0.5)
    # Files hold no number that is not finite, nor one that was never measured.
    assert [row.evidence[name] for name in ("moment_risk", "outcome_gap", "near_floor")] == [None, None, None]
    json.dumps(asdict(row), allow_nan=False)


def test_a_method_without_a_verdict_and_a_fit_that_raises_have_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_one(SPEC).evidence == {}
    use(monkeypatch, Constant(DataError("no good"), judge(EVIDENCE)))
    assert run_one(SPEC).evidence == {}


def test_repeats_trained_together_keep_their_own_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Together((1.0, DivergedError("warm start", 5), np.nan, DataError("no good"), 2.0)))
    rows = run_together([replace(SPEC, seed=seed) for seed in range(5)])
    assert [row.status for row in rows] == ["ok", "failed", "failed", "failed", "failed"]
    assert [row.evidence.get("n_held_out") for row in rows] == [100, None, 102, None, None]
    assert rows[1].evidence == rows[3].evidence == {}


@pytest.mark.parametrize("method", ["bgm-iv", "bgm-iv-noiv"])
def test_the_papers_scaling_is_for_its_high_dimensional_benchmark(method: str) -> None:
    assert benchmark_estimator("vector-proxy", method, "paper").scaling == PAPER_FIXED_SCALING  # type: ignore[attr-defined]
    assert benchmark_estimator("demand", method, "paper") == make_estimator(method, "paper")
    assert benchmark_estimator("vector-proxy", method, "default") == make_estimator(method, "default")
    assert benchmark_estimator("vector-proxy", "tsls", "paper") == make_estimator("tsls", "paper")
