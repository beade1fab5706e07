"""What every method of the registry must do, on four small problems.

A new method takes part by its registry entry. What does not depend on the method is tested once, in tests/estimators.
"""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from sklearn.base import clone

from bgmiv.data import IVData
from bgmiv.data.query import Query, Rows, query_along, query_at
from bgmiv.errors import ConfigError, DataError, ForkedProcessError, NotFittedError, SupportWarning
from bgmiv.estimators.base import IVEstimator
from bgmiv.intervals import Estimate
from bgmiv.progress import Reporter
from bgmiv.registry import METHODS

from .conftest import PROBLEMS, N

Tiny = Callable[..., IVEstimator]
Fitted = Callable[..., IVEstimator]

ONE = PROBLEMS["one covariate"]
WITH_INTERVALS = WITH_WEIGHTS = ("bgm-iv", "tsls", "npiv", "control-function")


@pytest.mark.parametrize("problem", PROBLEMS)
def test_predictions_have_one_finite_value_a_row(method: str, problem: str, fitted: Fitted) -> None:
    given, model = PROBLEMS[problem], fitted(method, problem)
    predicted = model.predict(given.treatments, given.query)
    assert predicted.shape == (7,)
    assert predicted.dtype == np.float64
    assert np.isfinite(predicted).all()
    # A single treatment stands for every row.
    n = 7 if given.query is not None else 1
    once, each = (model.predict(t, given.query) for t in (given.treatment[0], np.full(n, given.treatment[0])))
    np.testing.assert_array_equal(once, each)
    assert model.data_ is not None
    assert model.fitted_.schema == model.data_.schema
    for row in model.history_:
        assert row.phase
        assert np.isfinite(list(row.metrics.values())).all()


@pytest.mark.parametrize("problem", PROBLEMS)
def test_many_doses_are_single_doses_and_rows_do_not_matter_to_one_another(
    method: str, problem: str, fitted: Fitted
) -> None:
    given, model = PROBLEMS[problem], fitted(method, problem)
    assert model.data_ is not None
    predictor = model.fitted_
    doses = np.unique(given.treatment)[:3]
    query = query_along(predictor.schema, doses, given.query)
    values = predictor.at(query)
    assert values.shape == query.shape == (len(doses), 1 if given.query is None else 7)
    scale = 1e-6 * np.std(model.data_.outcome)
    for dose, row in zip(doses, values, strict=True):
        alone = query_at(predictor.schema, np.full(values.shape[1], dose), given.query)
        np.testing.assert_allclose(predictor.at(alone)[0], row, rtol=1e-6, atol=scale)
    for i in range(values.shape[1]):
        np.testing.assert_allclose(predictor.at(query.take([i]))[:, 0], values[:, i], rtol=1e-6, atol=scale)
    inside = predictor.in_support(query)
    assert inside.shape == values.shape
    assert inside.dtype == bool


def test_covariates_are_encoded_once(method: str, fitted: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = fitted(method).fitted_
    calls = []
    encode = type(predictor).encode
    monkeypatch.setattr(type(predictor), "encode", lambda self, v: calls.append(len(v)) or encode(self, v))
    rows = Rows(ONE.covariates[:, None])
    assert all(len(part) == N for part in rows.encoded_by(predictor))
    for part in (rows, rows.take(np.arange(5)), rows.take(slice(0, N, 6))):
        predictor.at(Query(np.array([[4.0], [5.0], [6.0]]), part))
    assert calls == [N]


def test_the_seed_decides_the_fit_and_nothing_else_is_touched(method: str, fitted: Fitted, tiny: Tiny) -> None:
    def state() -> tuple[Any, ...]:
        _, numbers, *rest = np.random.get_state()  # noqa: NPY002
        return numbers.tolist(), rest, random.getstate(), dict(jax.config.values), np.geterr(), dict(os.environ)

    np.random.seed(0)  # noqa: NPY002
    before = state()
    query = (ONE.treatments, ONE.query)
    again = ONE.fit(tiny(method)).predict(*query)
    assert state() == before
    np.testing.assert_array_equal(again, fitted(method).predict(*query))
    other = tiny(method, random_state=1)
    # Nothing is random in a sieve, which BGM-IV's last stage is here.
    if "random_state" in other.get_params() and method not in ("npiv", "control-function", "bgm-iv"):
        assert not np.array_equal(again, ONE.fit(other).predict(*query))


def test_units_do_not_matter(method: str, fitted: Fitted, tiny: Tiny) -> None:
    changed = replace(
        ONE,
        outcome=1000.0 * ONE.outcome - 7.0,
        treatment=0.01 * ONE.treatment + 3.0,
        covariates=50.0 * ONE.covariates - 4.0,
        instruments=2.0 * ONE.instruments + 1.0,
    )
    got = changed.fit(tiny(method)).predict(changed.treatments, 50.0 * ONE.query - 4.0)
    expected = fitted(method).predict(ONE.treatments, ONE.query)
    np.testing.assert_allclose((got + 7.0) / 1000.0, expected, atol=1e-3 * ONE.outcome.std())


def test_instruments_matter_unless_they_are_ignored(method: str, fitted: Fitted, tiny: Tiny) -> None:
    turned = replace(ONE, instruments=ONE.instruments[::-1])
    query = (ONE.treatments, ONE.query)
    assert not np.array_equal(turned.fit(tiny(method)).predict(*query), fitted(method).predict(*query))
    ignoring = [given.fit(tiny(f"{method}-noiv")).predict(*query) for given in (ONE, turned)]
    np.testing.assert_array_equal(*ignoring)
    config = METHODS[method].preset_configs()["default"]()
    assert config.use_instrument
    assert not config.without_instrument().use_instrument


def test_weights_enter_the_averages_or_are_refused(method: str, tiny: Tiny) -> None:
    weights = np.where(ONE.covariates > 0.0, 5.0, 1.0)
    weighted = replace(ONE, weights=weights)
    try:
        # The averages are over what any fit says, an untrained one too.
        model = weighted.fit(tiny(method, iterations=0))
    except DataError as error:
        assert f"{METHODS[method].estimator} does not take sample weights" in str(error)  # noqa: PT017
        assert method not in WITH_WEIGHTS
        return
    doses = np.array([4.0, 6.0])
    each = model.dose_response(doses, ONE.covariates, average=False).values
    np.testing.assert_allclose(model.dose_response(doses).values, np.average(each, axis=1, weights=weights), rtol=1e-6)
    assert model.ate(t0=4.0, t1=6.0) == pytest.approx(np.average(each[1] - each[0], weights=weights), rel=1e-5)


def test_intervals_are_those_of_the_factors_or_an_error_says_who_has_them(method: str, fitted: Fitted) -> None:
    model = fitted(method)
    if not model.fitted_.interval_kind:
        assert method not in WITH_INTERVALS
        with pytest.raises(ConfigError, match=rf"{METHODS[method].estimator} gives point estimates only.*TSLS"):
            model.ate_interval(t0=4.0, t1=6.0)
        return
    found = model.predict_interval(5.0, ONE.query)
    np.testing.assert_allclose(found.estimate, model.predict(5.0, ONE.query))
    assert (found.lower < found.estimate).all()
    assert (found.estimate < found.upper).all()
    predictor = model.fitted_
    query = query_along(predictor.schema, [4.0, 6.0], ONE.query)
    factors = Estimate(np.zeros(1), predictor.factors(query)).pointwise().sources
    assert {source.factors.shape[1:] for source in factors} == {(2, 7)}
    changes = [np.mean(source.factors[:, 1] - source.factors[:, 0], axis=1) for source in factors]
    expected = np.sqrt(sum(np.sum(change**2) for change in changes))
    assert model.ate_interval(ONE.query, t0=4.0, t1=6.0).std_error == pytest.approx(expected)


def test_far_from_the_data_there_is_a_warning(method: str, fitted: Fitted) -> None:
    model = fitted(method)
    assert np.mean(model.in_support(ONE.treatment, ONE.covariates)) > 0.8
    for ask in (lambda: model.predict(500.0, ONE.query), lambda: model.ate(t0=5.0, t1=500.0)):
        with pytest.warns(SupportWarning, match="0% of the rows are in the support"):
            ask()


def test_a_binary_treatment_is_asked_for_as_binary(method: str, fitted: Fitted) -> None:
    model = fitted(method, "binary, no covariates")
    low, high = model.predict([0, 1])
    assert low != high
    with pytest.raises(DataError, match="binary"):
        model.predict([0.5])


def test_a_binary_outcome_keeps_its_levels(method: str, fitted: Fitted) -> None:
    model = fitted(method, "binary, no covariates, binary outcome")
    assert model.fitted_.schema.outcome.levels == ("no", "yes")
    # For the others it is a number.
    if method == "bgm-iv":
        got = model.predict([0, 1])
        assert ((got > 0.0) & (got < 1.0)).all()


def test_an_outcome_of_several_levels_is_refused_by_all_but_one(method: str, tiny: Tiny) -> None:
    levels = np.array(["low", "middle", "high"])[np.digitize(ONE.outcome, [130.0, 160.0])]
    # Its probabilities are in test_levels.py.
    if method != "bgm-iv":
        with pytest.raises(DataError, match=r"3 levels.*outcome == level.*BGMIV"):
            replace(ONE, outcome=levels).fit(tiny(method))


def test_an_instrument_is_needed(method: str, tiny: Tiny) -> None:
    data = IVData.from_arrays(ONE.outcome, ONE.treatment, instruments=ONE.instruments).without_instruments()
    with pytest.raises(DataError, match="needs an instrument; pass at least one"):
        tiny(method)._config().fit(data, 0)


def test_parameters(method: str, tiny: Tiny) -> None:
    model = tiny(method)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert repr(copy) == repr(model)
    assert repr(type(model)()) == f"{METHODS[method].estimator}()"
    with pytest.raises(NotFittedError, match=rf"{METHODS[method].estimator} is not fitted yet"):
        copy.predict(ONE.treatments, ONE.query)


@dataclass
class Spy(Reporter):
    """A reporter that writes down the phases."""

    phases: list[str] = field(default_factory=list)
    open: int = 0
    steps: int = 0
    total: int = 0

    def start(self, phase: str, total: int) -> None:
        assert self.open == 0
        self.open += 1
        self.total += total
        self.phases.append(phase)

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        self.steps += steps

    def finish(self) -> None:
        self.open -= 1


def test_progress_is_reported_from_start_to_end(method: str, tiny: Tiny) -> None:
    spy = Spy()
    data = IVData.from_arrays(ONE.outcome, ONE.treatment, instruments=ONE.instruments, covariates=ONE.covariates)
    tiny(method)._config().fit(data, 0, spy)
    assert spy.phases
    assert spy.open == 0
    assert spy.steps == spy.total > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are never forked here")
def test_a_forked_process_predicts_or_refuses_at_once(method: str, fitted: Fitted, tmp_path: Path) -> None:
    model = fitted(method)
    expected = model.predict(ONE.treatments, ONE.query)
    with warnings.catch_warnings():
        # JAX warns of what is tried here.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            answer = np.array_equal(model.predict(ONE.treatments, ONE.query), expected)
        except ForkedProcessError:
            answer = "refused"
        (tmp_path / "answer").write_text(str(answer))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "it waits for ever"
    assert (tmp_path / "answer").read_text() == ("refused" if model.fitted_.compiled else "True")
