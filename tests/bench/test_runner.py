from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgmiv.bench import runner
from bgmiv.bench.executors import Advanced, Finished, Started
from bgmiv.bench.plan import RunSpec
from bgmiv.bench.presets import PAPER_FIXED_SCALING, benchmark_estimator
from bgmiv.bench.runner import Query, evaluate, pending, run_one, run_plan
from bgmiv.bench.store import RowStore
from bgmiv.errors import ConfigError, DataError, FitInterrupted
from bgmiv.estimators.registry import make_estimator

SPEC = RunSpec("demand", 200, 0.5, "tsls", "default", 0)


class Quiet:
    def show(self, index: int, event: Started | Advanced | Finished) -> None:
        pass


@dataclass(frozen=True)
class Stub:
    """A method that predicts one value everywhere, or raises it."""

    value: Any

    def fit(self, *_: Any) -> Stub:
        if isinstance(self.value, BaseException):
            raise self.value
        return self

    def predict(self, treatment: np.ndarray, covariates: Any) -> np.ndarray:
        return np.full(len(treatment), self.value)


def use(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    monkeypatch.setattr(runner, "benchmark_estimator", lambda *_: Stub(value))


def test_a_row_holds_what_was_measured() -> None:
    row = run_one(SPEC)
    assert row.status == "ok"
    assert row.error == ""
    assert row.spec == SPEC
    parts = (row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)
    assert all(part is not None and part > 0 for part in parts)
    assert parts[0] == pytest.approx((2142 * parts[1] + 658 * parts[2]) / 2800)  # type: ignore[operator]
    assert row.seconds > 0
    assert row.cpu_seconds > 0
    assert row.compile_included is True
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
    use(monkeypatch, value)
    row = run_one(SPEC)
    assert row.status == "failed"
    assert "2800 of 2800 grid predictions are not finite" in row.error
    assert row.structural_mse is None


def test_a_fit_that_raises_fails_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DataError("no good"))
    row = run_one(SPEC)
    assert (row.status, row.error) == ("failed", "DataError: no good")


def test_a_real_failure_is_a_row() -> None:
    row = run_one(RunSpec("vector-proxy", 100, 0.5, "tsls", "default", 0))
    assert row.status == "failed"
    assert "785 covariate columns and 100 rows" in row.error


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), FitInterrupted("stopped")])
def test_an_interrupted_fit_is_no_row(monkeypatch: pytest.MonkeyPatch, interrupt: BaseException) -> None:
    use(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_one(SPEC)


def test_unknown_names_are_errors_not_rows() -> None:
    with pytest.raises(ConfigError):
        run_one(RunSpec("demand", 200, 0.5, "ols", "default", 0))


def test_a_plan_resumes_and_tries_failures_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RowStore(tmp_path)
    specs = [RunSpec("demand", 100, 0.5, "tsls", "default", seed) for seed in range(4)]
    assert len(list(run_plan(specs[:2], store, 1, Quiet()))) == 2
    with monkeypatch.context() as patch:
        use(patch, np.nan)
        list(run_plan(specs[2:3], store, 1, Quiet()))
    left = pending(specs, store)
    assert left.specs == (specs[2], specs[3])
    assert (left.done, left.damaged) == (2, ())
    list(run_plan(left.specs, store, 1, Quiet()))
    assert pending(specs, store).specs == ()


def test_a_damaged_row_is_pending(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    list(run_plan([SPEC], store, 1, Quiet()))
    store.path(SPEC).write_text("{")
    left = pending([SPEC], store)
    assert left.specs == (SPEC,)
    assert "damaged" in left.damaged[0]


def test_workers_give_the_same_rows(tmp_path: Path) -> None:
    specs = [RunSpec("demand", 100, 0.5, "tsls", "default", seed) for seed in range(3)]
    rows = {row.seed: row for row in run_plan(specs, RowStore(tmp_path), 2, Quiet())}
    assert {seed: row.structural_mse for seed, row in rows.items()} == {
        spec.seed: run_one(spec).structural_mse for spec in specs
    }
    assert len(RowStore(tmp_path).rows()) == 3


@pytest.mark.parametrize("method", ["bgm-iv", "bgm-iv-noiv"])
def test_the_papers_scaling_is_for_its_high_dimensional_benchmark(method: str) -> None:
    assert benchmark_estimator("vector-proxy", method, "paper").scaling == PAPER_FIXED_SCALING  # type: ignore[attr-defined]
    assert benchmark_estimator("demand", method, "paper") == make_estimator(method, "paper")
    assert benchmark_estimator("vector-proxy", method, "default") == make_estimator(method, "default")
    assert benchmark_estimator("vector-proxy", "tsls", "paper") == make_estimator("tsls", "paper")
