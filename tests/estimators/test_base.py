"""The scikit-learn-shaped estimator, on a method that only remembers what it was given."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from bgmiv import TSLS
from bgmiv.data import IVData
from bgmiv.data.query import Encoded, Query
from bgmiv.data.schema import Schema
from bgmiv.diagnostics.verdict import judge
from bgmiv.errors import ConfigError, DataError, FitWarning, NotFittedError, WeakInstrumentWarning
from bgmiv.estimators.base import IVEstimator
from bgmiv.fitted import FitEvidence, FittedMethod
from bgmiv.progress import Reporter, silent
from bgmiv.support import LinearSupport

Y, X, W = np.asarray([1.0, 3.0, 2.0, 5.0]), np.asarray([0.1, 0.4, 0.2, 0.9]), np.asarray([2.0, 1.0, 4.0, 3.0])


@dataclass(frozen=True, eq=False)
class Remembered(FittedMethod):
    schema: Schema
    support: LinearSupport
    data: IVData
    seed: int
    reporter: Reporter

    def encode(self, covariates: np.ndarray) -> Encoded:
        return (covariates,)

    def at(self, query: Query) -> np.ndarray:
        return np.broadcast_to(query.treatment, query.shape)


@dataclass(frozen=True)
class Config:
    depth: int
    evidence: FitEvidence | None = None

    def without_instrument(self) -> Config:
        return self

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> Remembered:
        return Remembered(data.schema, LinearSupport.fit(data), data, seed, reporter, evidence=self.evidence)


@dataclass(eq=False, repr=False, kw_only=True)
class Toy(IVEstimator):
    """A final estimator."""

    depth: int = 2
    sizes: Any = None
    treatment_kind: str = "auto"
    random_state: Any = None
    progress: bool = False

    def _config(self) -> Config:
        if self.depth < 1:
            raise ConfigError(f"depth must be at least 1, got {self.depth}.")
        return Config(self.depth)


def test_fit_returns_itself_and_takes_roles_by_name() -> None:
    toy = Toy(random_state=3)
    assert toy.fit(Y, X, instruments=W) is toy
    with pytest.raises(TypeError, match="fit takes outcome and treatment by position"):
        toy.fit(Y, X, W)  # type: ignore[misc]
    np.testing.assert_array_equal(toy.fitted_.data.outcome, Y)
    np.testing.assert_array_equal(toy.predict(X), X)
    assert toy.history_ == ()


def test_params_round_trip() -> None:
    toy = Toy(depth=3, sizes=(1, 2), random_state=5)
    params = {"depth": 3, "sizes": (1, 2), "treatment_kind": "auto", "random_state": 5, "progress": False}
    params |= {"use_instrument": True, "outcome_kind": "auto", "covariance": "auto"}
    assert toy.get_params() == params
    assert toy.set_params(depth=4, random_state=None) is toy
    assert (toy.depth, toy.random_state) == (4, None)


def test_unknown_parameters_are_refused_and_the_known_listed() -> None:
    with pytest.raises(ConfigError, match=r"Toy has no argument 'deepth'. Did you mean 'depth'.*depth, sizes"):
        Toy().set_params(deepth=3)


def test_clone_is_unfitted_with_the_same_parameters() -> None:
    toy = Toy(depth=3, sizes=(1, 2), random_state=1).fit(Y, X, instruments=W)
    copy = clone(toy)
    assert type(copy) is Toy
    assert copy.get_params() == toy.get_params()
    with pytest.raises(NotFittedError, match="Toy is not fitted yet"):
        copy.predict(X)


@pytest.mark.parametrize(
    ("toy", "shown"),
    [
        (Toy(), "Toy()"),
        (Toy(depth=3), "Toy(depth=3)"),
        (Toy(sizes=(1, 2), random_state=0), "Toy(sizes=(1, 2), random_state=0)"),
        (Toy(sizes=np.asarray([1, 2])), "Toy(sizes=array([1, 2]))"),
    ],
)
def test_repr_shows_what_was_changed(toy: Toy, shown: str) -> None:
    assert repr(toy) == shown


def test_constructing_checks_nothing_and_a_failed_fit_leaves_nothing_behind() -> None:
    with pytest.raises(ConfigError, match="depth"):
        Toy(depth=0).fit(Y, X, instruments=W)
    toy = Toy()
    with pytest.raises(DataError, match="treatment has 3 rows but outcome has 4"):
        toy.fit(Y, X[:3], instruments=W)
    with pytest.raises(NotFittedError, match="Toy is not fitted yet"):
        toy.predict(X)


@pytest.mark.parametrize("ask", [lambda toy: toy.predict(X), lambda toy: toy.history_])
def test_asking_too_early_says_what_to_call(ask: Any) -> None:
    with pytest.raises(NotFittedError, match=r"Toy is not fitted.*fit\(outcome, treatment, instruments"):
        ask(Toy())


def test_without_a_seed_one_is_drawn_and_kept() -> None:
    for seed in (7, np.int64(7)):
        toy = Toy(random_state=seed).fit(Y, X, instruments=W)
        assert toy.seed_ == 7
        assert toy.fitted_.seed == 7
    one, two = (Toy().fit(Y, X, instruments=W) for _ in range(2))
    assert one.seed_ != two.seed_
    assert one.random_state is None
    assert one.fitted_.seed == one.seed_


def test_generators_and_seed_sequences_give_seeds() -> None:
    rng = np.random.default_rng(0)
    one, two = (Toy(random_state=rng).fit(Y, X, instruments=W).seed_ for _ in range(2))
    assert one != two
    assert Toy(random_state=np.random.default_rng(0)).fit(Y, X, instruments=W).seed_ == one
    sequence = np.random.SeedSequence(5)
    assert len({Toy(random_state=sequence).fit(Y, X, instruments=W).seed_ for _ in range(2)}) == 1


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "7", True, np.random.RandomState(0)])
def test_bad_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(ConfigError, match="random_state"):
        Toy(random_state=seed).fit(Y, X, instruments=W)


def test_progress_is_shown_only_on_demand(capfd: pytest.CaptureFixture[str]) -> None:
    assert Toy().fit(Y, X, instruments=W).fitted_.reporter is silent
    assert capfd.readouterr() == ("", "")
    assert Toy(progress=True).fit(Y, X, instruments=W).fitted_.reporter is not silent
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("gain", "severity"), [(0.5, "note"), (0.01, "doubtful"), (0.0, "failed"), (None, None)])
def test_a_poor_fit_is_a_warning_to_the_caller(monkeypatch: pytest.MonkeyPatch, gain: Any, severity: Any) -> None:
    evidence = None if gain is None else FitEvidence(100, first_stage_gain=gain)
    monkeypatch.setattr(Toy, "_config", lambda self: Config(self.depth, evidence))
    poor = severity in ("doubtful", "failed")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        toy = Toy().fit(Y, X, instruments=W)
    assert all(warning.filename == __file__ for warning in caught)
    caught = [warning for warning in caught if warning.category is not WeakInstrumentWarning]
    assert [warning.category for warning in caught] == [FitWarning] * poor
    if evidence is not None and poor:
        assert judge(evidence).severity == severity
        assert str(caught[0].message) == judge(evidence).sentence
        # As an error it still leaves the fit behind.
        with warnings.catch_warnings():
            warnings.simplefilter("error", FitWarning)
            again = Toy()
            with pytest.raises(FitWarning, match=re.escape(judge(evidence).sentence)):
                again.fit(Y, X, instruments=W)
        np.testing.assert_array_equal(again.predict(X), toy.predict(X))


def test_treatment_kind_is_passed_on() -> None:
    flags = np.asarray([0.0, 1.0, 1.0, 0.0])
    assert Toy(treatment_kind="binary").fit(Y, flags, instruments=W).fitted_.schema.treatment.kind == "binary"
    with pytest.raises(DataError, match="treatment_kind"):
        Toy(treatment_kind="ordinal").fit(Y, X, instruments=W)


def test_arrays_tables_and_formulas_are_the_same_fit() -> None:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, 100))
    table = {"y": 2.0 * (w + u) + v - u, "x": w + u, "w": w, "v": v, "pw": 1.0 + (v > 0.0)}
    by_arrays = TSLS().fit(table["y"], table["x"], instruments={"w": w}, covariates={"v": v}, sample_weight=table["pw"])
    by_names = TSLS().fit_table(table, outcome="y", treatment="x", instruments="w", covariates="v", sample_weight="pw")
    by_formula = TSLS().fit_formula("y ~ v + [x ~ w]", table, sample_weight="pw")
    query = {"v": v[:5], "other": np.ones(5)}
    expected = by_arrays.predict(1.0, {"v": v[:5]})
    for model in (by_names, by_formula):
        np.testing.assert_allclose(model.predict(1.0, query), expected)
        assert model.ate(t0=0.0, t1=1.0) == pytest.approx(by_arrays.ate(t0=0.0, t1=1.0))


def test_a_treatment_as_a_formula_sees_it() -> None:
    rng = np.random.default_rng(1)
    w, v, u = rng.normal(size=(3, 200))
    table = {"y": (w + u) - u, "x": np.exp(w + u), "w": w, "v": v}
    model = TSLS().fit_formula("y ~ v + I(v ** 2) + [np.log(x) ~ w]", table)
    assert model.ate(t0=0.0, t1=1.0) == pytest.approx(1.0, abs=0.2)
    assert model.predict(0.0, {"v": v[:3]}).shape == (3,)
