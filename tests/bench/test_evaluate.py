from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest

from bgmiv.bench import evaluate as module
from bgmiv.bench import structural_error
from bgmiv.bench.evaluate import PAPER_FIXED_SCALING, benchmark_config, failed_row, run_one
from bgmiv.bench.plan import RunSpec, identify
from bgmiv.data.query import Query
from bgmiv.data.schema import Schema
from bgmiv.designs import StructuralGrid, make_design
from bgmiv.diagnostics.verdict import Verdict, judge
from bgmiv.errors import ConfigError, DataError, FitInterrupted
from bgmiv.fitted import FitEvidence
from bgmiv.registry import make_config

SPEC = RunSpec("demand", 200, 0.5, "tsls", "default", 0)


@dataclass(frozen=True)
class Constant:
    """A method that predicts one value everywhere, or raises it."""

    value: Any
    evidence: FitEvidence | None = None
    closed_form: bool = False
    is_linear: bool = False
    first_stage_f: float | None = None
    use_instrument: bool = True

    @property
    def verdict(self) -> Verdict | None:
        return None if self.evidence is None else judge(self.evidence)

    def held_out_predictions(self, *_: Any) -> None:
        return None

    def fit(self, *_: Any) -> Constant:
        if isinstance(self.value, BaseException):
            raise self.value
        return self

    @property
    def schema(self) -> Schema:
        return make_design("demand").sample(20, 0.5, 0).schema

    def at(self, query: Query) -> np.ndarray:
        return np.full(query.shape, self.value)


def use(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    monkeypatch.setattr(module, "benchmark_config", lambda *_: config)


def test_a_row_holds_what_was_measured_and_is_repeatable() -> None:
    row = run_one(SPEC)
    assert (row.status, row.error, row.attempts) == ("ok", "", 1)
    assert row.key == identify(SPEC)
    parts = (row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)
    assert all(part is not None and part > 0 for part in parts)
    assert parts[0] == pytest.approx((2142 * parts[1] + 658 * parts[2]) / 2800)  # type: ignore[operator]
    assert row.seconds > 0
    assert row.cpu_seconds > 0
    assert {"bgmiv", "jax", "equinox", "optax", "numpy", "python"} <= set(row.versions)
    assert run_one(SPEC).structural_mse == row.structural_mse


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "2800 of 2800 grid predictions are not finite"),
        (np.inf, "not finite"),
        (DataError("no good"), "DataError: no good"),
    ],
)
def test_a_bad_fit_is_a_failed_row(monkeypatch: pytest.MonkeyPatch, value: Any, words: str) -> None:
    use(monkeypatch, Constant(value))
    row = run_one(SPEC)
    assert row.status == "failed"
    assert words in row.error
    assert row.structural_mse is None


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), FitInterrupted("stopped")])
def test_an_interrupted_fit_is_no_row(monkeypatch: pytest.MonkeyPatch, interrupt: BaseException) -> None:
    use(monkeypatch, Constant(interrupt))
    with pytest.raises(KeyboardInterrupt):
        run_one(SPEC)


def test_unknown_names_are_errors_not_rows() -> None:
    with pytest.raises(ConfigError, match="unknown method 'ols'"):
        run_one(RunSpec("demand", 200, 0.5, "ols", "default", 0))


def test_a_lost_run_has_a_row_too() -> None:
    row = failed_row(identify(SPEC), "the worker process ended", attempts=2)
    assert (row.spec, row.status, row.attempts, row.seconds) == (SPEC, "failed", 2, 0.0)


def test_a_row_holds_the_evidence_of_the_method_in_finite_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = FitEvidence(n_held_out=80, outcome_explained=0.5, moment_risk=float("nan"), outcome_gap=float("inf"))
    use(monkeypatch, Constant(1.0, evidence))
    row = run_one(SPEC)
    assert set(row.evidence) == set(asdict(evidence)) - {"networks"}
    assert [row.evidence[name] for name in ("n_held_out", "outcome_explained", "moment_risk", "outcome_gap")] == [
        80, 0.5, None, None,
    ]  # fmt: skip
    json.dumps(asdict(row), allow_nan=False)


@pytest.mark.parametrize(
    ("design", "method", "preset", "fixed"),
    [
        ("vector-proxy", "bgm-iv", "paper", True),
        ("mnist", "bgm-iv-noiv", "paper-qmc", True),
        ("vector-proxy", "bgm-iv", "default", False),
        ("demand", "bgm-iv", "paper", False),
        ("vector-proxy", "kiv", "paper", False),
    ],
)
def test_the_papers_presets_have_its_scaling_on_its_wide_designs(
    design: str, method: str, preset: str, fixed: bool
) -> None:
    config = benchmark_config(design, method, preset)
    assert (config != make_config(method, preset)) == fixed
    assert not fixed or config.scaling == PAPER_FIXED_SCALING  # type: ignore[attr-defined]


def test_error_is_split_by_support() -> None:
    grid = StructuralGrid(np.zeros(4), {}, np.arange(4.0), np.array([True, True, False, False]))
    assert structural_error(np.arange(4.0) + [1.0, 1.0, 3.0, 3.0], grid) == (5.0, 1.0, 9.0)
    inside = StructuralGrid(np.zeros(2), {}, np.arange(2.0), np.array([True, True]))
    assert math.isnan(structural_error(np.arange(2.0), inside).outside)
