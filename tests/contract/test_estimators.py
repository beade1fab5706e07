"""What every method must do; a new method adds a row to CASES. test_methods_on_designs.py fits them on every design."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest
from sklearn.base import clone

from bgmiv.data import IVData
from bgmiv.errors import DataError, NotFittedError
from bgmiv.estimators.base import Estimator, FittedIV, IVEstimator
from bgmiv.estimators.bgmiv import BGMIV
from bgmiv.estimators.deepgmm import DeepGMM
from bgmiv.estimators.deepiv import DeepIV
from bgmiv.estimators.dfiv import DFIV
from bgmiv.estimators.kiv import KIV
from bgmiv.estimators.registry import METHODS, make_estimator, method_names
from bgmiv.estimators.tsls import TSLS

Tiny = Callable[..., Estimator]
Fitted = Callable[[str, str], FittedIV]

N = 60


@dataclass(frozen=True)
class Case:
    """A method's face, and whether its fits depend on the seed and on the instruments."""

    face: Callable[[], IVEstimator]
    random: bool
    uses_instruments: bool = True


CASES = {
    "bgm-iv": Case(lambda: BGMIV(random_state=0), random=True),
    "bgm-iv-noiv": Case(lambda: BGMIV(random_state=0, use_instrument=False), random=True, uses_instruments=False),
    "tsls": Case(TSLS, random=False),
    "tsls-noiv": Case(lambda: TSLS(use_instrument=False), random=False, uses_instruments=False),
    "kiv": Case(lambda: KIV(random_state=0), random=True),
    "kiv-noiv": Case(lambda: KIV(random_state=0, use_instrument=False), random=True, uses_instruments=False),
    "deepiv": Case(lambda: DeepIV(random_state=0), random=True),
    "deepiv-noiv": Case(lambda: DeepIV(random_state=0, use_instrument=False), random=True, uses_instruments=False),
    "dfiv": Case(lambda: DFIV(random_state=0), random=True),
    "dfiv-noiv": Case(lambda: DFIV(random_state=0, use_instrument=False), random=True, uses_instruments=False),
    "deepgmm": Case(lambda: DeepGMM(random_state=0), random=True),
    "deepgmm-noiv": Case(lambda: DeepGMM(random_state=0, use_instrument=False), random=True, uses_instruments=False),
}


@dataclass(frozen=True)
class Problem:
    """Arguments of `fit` and of `predict`."""

    outcome: np.ndarray
    treatment: np.ndarray
    instruments: np.ndarray
    covariates: Any = None
    blocks: Mapping[str, str] = field(default_factory=dict)
    query: Any = None

    @property
    def data(self) -> IVData:
        return IVData.from_arrays(
            self.outcome,
            self.treatment,
            instruments=self.instruments,
            covariates=self.covariates,
            blocks=self.blocks,
        )

    @property
    def treatments(self) -> np.ndarray:
        return self.treatment[:7]


def _one_covariate() -> Problem:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, N))
    x = 5.0 + w + v + u
    return Problem(100.0 + 10.0 * (x + v + u), x, w, v, query=v[:7])


def _vector_and_category() -> Problem:
    rng = np.random.default_rng(1)
    w = rng.normal(size=(N, 2))
    season, u = rng.normal(size=(2, N))
    region = rng.choice(["n", "s", "w"], size=N)
    x = w @ [1.0, -0.5] + season + u
    covariates = {"proxy": rng.normal(size=(N, 12)) + season[:, None], "region": region}
    query = {name: values[:7] for name, values in covariates.items()}
    return Problem(x - season + u, x, w, covariates, {"region": "categorical"}, query)


def _binary_without_covariates() -> Problem:
    rng = np.random.default_rng(2)
    w, u = rng.normal(size=(2, N))
    x = w + u > 0.0
    return Problem(2.0 * x + u, x, w)


PROBLEMS = {
    "one covariate": _one_covariate,
    "two instruments, vector and category": _vector_and_category,
    "binary, no covariates": _binary_without_covariates,
}


@cache
def problem(name: str) -> Problem:
    return PROBLEMS[name]()


@pytest.fixture(scope="module")
def fitted(tiny: Tiny) -> Fitted:
    """Tiny fits by method and problem, each made once."""
    return cache(lambda method, name: tiny(make_estimator(method)).fit(problem(name).data, jax.random.key(0)))


@pytest.fixture(params=list(CASES))
def method(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=list(PROBLEMS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def face(method: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> IVEstimator:
    """The method's user class, with the default preset made tiny."""
    for presets in METHODS.values():
        monkeypatch.setitem(presets, "default", partial(tiny, presets["default"]()))
    return CASES[method].face()


def fit_face(face: IVEstimator, given: Problem) -> IVEstimator:
    return face.fit(
        given.outcome,
        given.treatment,
        instruments=given.instruments,
        covariates=given.covariates,
        blocks=given.blocks or None,
    )


def test_every_method_is_in_the_suite() -> None:
    assert set(CASES) == set(method_names())


def test_predictions_have_one_finite_value_a_row(method: str, name: str, fitted: Fitted) -> None:
    given, result = problem(name), fitted(method, name)
    predicted = result.predict(given.treatments, given.query)
    assert predicted.shape == (7,)
    assert predicted.dtype == np.float64
    assert np.isfinite(predicted).all()


def test_a_single_treatment_stands_for_every_row(method: str, name: str, fitted: Fitted) -> None:
    given, result = problem(name), fitted(method, name)
    level = given.treatment[0]
    n = 7 if given.query is not None else 1
    predicted = result.predict(level, given.query)
    assert predicted.shape == (n,)
    np.testing.assert_array_equal(predicted, result.predict(np.full(n, level), given.query))


def test_the_schema_is_kept(method: str, name: str, fitted: Fitted) -> None:
    kept, given = fitted(method, name).schema, problem(name).data.schema
    assert (kept.outcome, kept.treatment, kept.blocks) == (given.outcome, given.treatment, given.blocks)


def test_history_is_finite(method: str, name: str, fitted: Fitted) -> None:
    history = fitted(method, name).history
    assert isinstance(history, tuple)
    for row in history:
        assert row.phase
        assert row.step > 0
        assert np.isfinite(list(row.metrics.values())).all()


def test_predict_is_pure(method: str, name: str, fitted: Fitted) -> None:
    given, result = problem(name), fitted(method, name)
    once = result.predict(given.treatments, given.query)
    np.testing.assert_array_equal(once, result.predict(given.treatments, given.query))


def test_the_same_key_gives_the_same_fit(method: str, fitted: Fitted, tiny: Tiny) -> None:
    given = problem("one covariate")
    config = tiny(make_estimator(method))
    query = (given.treatments, given.query)
    once = fitted(method, "one covariate").predict(*query)
    np.testing.assert_array_equal(once, config.fit(given.data, jax.random.key(0)).predict(*query))
    other = config.fit(given.data, jax.random.key(1)).predict(*query)
    assert np.array_equal(once, other) != CASES[method].random


def test_fitting_leaves_global_state_alone(method: str, tiny: Tiny) -> None:
    def state() -> tuple[Any, ...]:
        _, numbers, *rest = np.random.get_state()  # noqa: NPY002
        return numbers.tolist(), rest, random.getstate(), dict(jax.config.values), np.geterr(), dict(os.environ)

    np.random.seed(0)  # noqa: NPY002
    before = state()
    fitted = tiny(make_estimator(method)).fit(problem("one covariate").data, jax.random.key(0))
    fitted.predict(problem("one covariate").treatments, problem("one covariate").query)
    assert state() == before


def test_queries_are_in_the_units_of_treatment_and_covariates(method: str, fitted: Fitted, tiny: Tiny) -> None:
    given = problem("one covariate")
    changed = replace(
        given,
        treatment=0.01 * given.treatment + 3.0,
        covariates=50.0 * given.covariates - 4.0,
        instruments=2.0 * given.instruments + 1.0,
    )
    result = tiny(make_estimator(method)).fit(changed.data, jax.random.key(0))
    expected = fitted(method, "one covariate").predict(given.treatments, given.query)
    got = result.predict(changed.treatments, 50.0 * given.query - 4.0)
    np.testing.assert_allclose(got, expected, atol=1e-3 * given.outcome.std())


def test_instruments_matter_exactly_where_they_should(method: str, fitted: Fitted, tiny: Tiny) -> None:
    given = problem("one covariate")
    changed = replace(given, instruments=given.instruments[::-1])
    result = tiny(make_estimator(method)).fit(changed.data, jax.random.key(0))
    query = (given.treatments, given.query)
    same = np.array_equal(result.predict(*query), fitted(method, "one covariate").predict(*query))
    assert same != CASES[method].uses_instruments


def test_the_face_fits_what_the_config_fits(method: str, face: IVEstimator, fitted: Fitted) -> None:
    given = problem("one covariate")
    assert fit_face(face, given) is face
    np.testing.assert_array_equal(
        face.predict(given.treatments, given.query),
        fitted(method, "one covariate").predict(given.treatments, given.query),
    )
    assert face.history_ == fitted(method, "one covariate").history


def test_asking_before_fitting(face: IVEstimator) -> None:
    given = problem("one covariate")
    with pytest.raises(NotFittedError, match=rf"{type(face).__name__} is not fitted yet"):
        face.predict(given.treatments, given.query)
    with pytest.raises(NotFittedError):
        face.history_


def test_clone_and_parameters(face: IVEstimator) -> None:
    twin = clone(face)
    assert type(twin) is type(face)
    assert twin.get_params() == face.get_params()
    assert repr(twin) == repr(face)
    assert type(face)(**face.get_params()).get_params() == face.get_params()
    assert twin.set_params(**face.get_params()) is twin


def _nan(values: np.ndarray, row: int) -> np.ndarray:
    changed = np.array(values, dtype=float)
    changed[row] = np.nan
    return changed


GOOD = _one_covariate()
BAD_DATA = {
    "missing outcome": replace(GOOD, outcome=_nan(GOOD.outcome, 4)),
    "infinite covariate": replace(GOOD, covariates=np.where(np.arange(N) == 3, np.inf, GOOD.covariates)),
    "short treatment": replace(GOOD, treatment=GOOD.treatment[:-1]),
    "constant instrument": replace(GOOD, instruments=np.ones(N)),
    "instrument among the covariates": replace(GOOD, covariates=GOOD.instruments),
}


@pytest.mark.parametrize("bad", list(BAD_DATA))
def test_bad_data_are_refused_in_the_same_words(face: IVEstimator, bad: str) -> None:
    with pytest.raises(DataError) as expected:
        BAD_DATA[bad].data  # the boundary's own words
    with pytest.raises(DataError) as got:
        fit_face(face, BAD_DATA[bad])
    assert str(got.value) == str(expected.value)


BAD_QUERIES: dict[str, tuple[Any, Any]] = {
    "no covariates": (GOOD.treatments, None),
    "too few covariates": (GOOD.treatments, GOOD.query[:3]),
    "too many columns": (GOOD.treatments, np.ones((7, 3))),
    "missing treatment": (_nan(GOOD.treatments, 2), GOOD.query),
    "missing covariate": (GOOD.treatments, _nan(GOOD.query, 0)),
    "words": (list("abcdefg"), GOOD.query),
    "nothing": ([], []),
}


@pytest.mark.parametrize("bad", list(BAD_QUERIES))
def test_bad_queries_are_refused_in_the_same_words(method: str, bad: str, fitted: Fitted) -> None:
    result = fitted(method, "one covariate")
    with pytest.raises(DataError) as expected:
        result.schema.check_query(*BAD_QUERIES[bad])
    with pytest.raises(DataError) as got:
        result.predict(*BAD_QUERIES[bad])
    assert str(got.value) == str(expected.value)


def test_a_binary_treatment_is_asked_for_as_binary(method: str, fitted: Fitted) -> None:
    result = fitted(method, "binary, no covariates")
    arms = result.predict([0, 1])
    assert arms.shape == (2,)
    assert arms[0] != arms[1]
    with pytest.raises(DataError, match="binary"):
        result.predict([0.5])


@dataclass
class Spy:
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
    tiny(make_estimator(method)).fit(problem("one covariate").data, jax.random.key(0), spy)
    assert spy.phases
    assert spy.open == 0
    assert spy.steps == spy.total > 0
