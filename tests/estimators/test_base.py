"""The scikit-learn-shaped face, on a method that only remembers what it was given."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from sklearn.base import clone

from bgmiv.data import IVData
from bgmiv.data.schema import Schema
from bgmiv.errors import ConfigError, DataError, FitWarning, NotFittedError
from bgmiv.estimators.base import IVEstimator
from bgmiv.progress import Reporter, silent
from bgmiv.trust.verdict import Finding, FitEvidence, Verdict

Y, X, W = np.asarray([1.0, 3.0, 2.0, 5.0]), np.asarray([0.1, 0.4, 0.2, 0.9]), np.asarray([2.0, 1.0, 4.0, 3.0])


@dataclass(frozen=True, eq=False)
class Remembered:
    data: IVData
    key: jax.Array
    reporter: Reporter
    verdict: Verdict | None = None
    history: tuple[()] = ()

    @property
    def schema(self) -> Schema:
        return self.data.schema

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        return self.schema.check_query(treatment, covariates)[0]


@dataclass(frozen=True)
class Config:
    depth: int
    verdict: Verdict | None = None

    def fit(self, data: IVData, key: jax.Array, reporter: Reporter = silent) -> Remembered:
        return Remembered(data, key, reporter, self.verdict)


class Toy(IVEstimator):
    """A final face."""

    def __init__(
        self,
        depth: int = 2,
        *,
        sizes: tuple[int, ...] | None = None,
        treatment_kind: str = "auto",
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.depth = depth
        self.sizes = sizes
        self.treatment_kind = treatment_kind
        self.random_state = random_state
        self.progress = progress

    def _config(self) -> Config:
        if self.depth < 1:
            raise ConfigError(f"depth must be at least 1, got {self.depth}.")
        return Config(self.depth)


def test_fit_returns_itself_and_takes_roles_by_name() -> None:
    toy = Toy(random_state=3)
    assert toy.fit(Y, X, instruments=W) is toy
    with pytest.raises(TypeError):
        toy.fit(Y, X, W)  # type: ignore[misc]
    np.testing.assert_array_equal(toy.fitted_.data.outcome, Y)
    np.testing.assert_array_equal(toy.predict(X), X)
    assert toy.history_ == ()


def test_params_round_trip() -> None:
    toy = Toy(3, sizes=(1, 2), random_state=5)
    assert toy.get_params() == {
        "depth": 3,
        "sizes": (1, 2),
        "treatment_kind": "auto",
        "random_state": 5,
        "progress": False,
    }
    assert toy.set_params(depth=4, random_state=None) is toy
    assert (toy.depth, toy.random_state) == (4, None)
    assert Toy(**toy.get_params()).get_params() == toy.get_params()


def test_unknown_parameters_are_refused_and_the_known_listed() -> None:
    with pytest.raises(ConfigError, match=r"Toy has no parameter 'deepth'.*depth, sizes"):
        Toy().set_params(deepth=3)


def test_clone_is_unfitted_with_the_same_parameters() -> None:
    toy = Toy(3, sizes=(1, 2), random_state=1).fit(Y, X, instruments=W)
    twin = clone(toy)
    assert type(twin) is Toy
    assert twin.get_params() == toy.get_params()
    with pytest.raises(NotFittedError):
        twin.predict(X)


@pytest.mark.parametrize(
    ("toy", "shown"),
    [
        (Toy(), "Toy()"),
        (Toy(3), "Toy(depth=3)"),
        (Toy(sizes=(1, 2), random_state=0), "Toy(sizes=(1, 2), random_state=0)"),
        (Toy(sizes=np.asarray([1, 2])), "Toy(sizes=array([1, 2]))"),
    ],
)
def test_repr_shows_what_was_changed(toy: Toy, shown: str) -> None:
    assert repr(toy) == shown


def test_constructing_checks_nothing_and_fit_checks_all() -> None:
    toy = Toy(depth=0)
    with pytest.raises(ConfigError, match="depth"):
        toy.fit(Y, X, instruments=W)


@pytest.mark.parametrize("ask", [lambda toy: toy.predict(X), lambda toy: toy.history_])
def test_asking_too_early_says_what_to_call(ask: Any) -> None:
    with pytest.raises(NotFittedError, match=r"Toy is not fitted.*fit\(outcome, treatment, instruments"):
        ask(Toy())


def test_a_failed_fit_leaves_nothing_behind() -> None:
    toy = Toy()
    with pytest.raises(DataError):
        toy.fit(Y, X[:3], instruments=W)
    with pytest.raises(NotFittedError):
        toy.predict(X)


def test_the_seed_is_the_key() -> None:
    toy = Toy(random_state=7).fit(Y, X, instruments=W)
    assert toy.seed_ == 7
    assert toy.fitted_.key == jax.random.key(7)
    assert Toy(random_state=np.int64(7)).fit(Y, X, instruments=W).fitted_.key == toy.fitted_.key


def test_without_a_seed_one_is_drawn_and_kept() -> None:
    one, two = (Toy().fit(Y, X, instruments=W) for _ in range(2))
    assert one.seed_ != two.seed_
    assert one.random_state is None
    assert one.fitted_.key == jax.random.key(one.seed_)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "7", True, np.random.default_rng(0)])
def test_bad_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(ConfigError, match="random_state"):
        Toy(random_state=seed).fit(Y, X, instruments=W)


def test_progress_is_shown_only_on_demand(capfd: pytest.CaptureFixture[str]) -> None:
    assert Toy().fit(Y, X, instruments=W).fitted_.reporter is silent
    assert capfd.readouterr() == ("", "")
    assert Toy(progress=True).fit(Y, X, instruments=W).fitted_.reporter is not silent
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("level", "n_held_out", "said"),
    [
        ("good", 100, False),
        ("doubtful", 100, True),
        ("failed", 100, True),
        # That nothing could be checked is in the result only.
        ("doubtful", 0, False),
        ("failed", 0, False),
        (None, 0, False),
    ],
)
def test_what_speaks_against_a_fit_is_said_to_the_caller(
    monkeypatch: pytest.MonkeyPatch, level: Any, n_held_out: int, said: bool
) -> None:
    verdict = None if level is None else Verdict(level, (Finding(level, "for a reason."),), FitEvidence(n_held_out))
    monkeypatch.setattr(Toy, "_config", lambda self: Config(self.depth, verdict))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        toy = Toy().fit(Y, X, instruments=W)
    assert len(caught) == said
    if said:
        assert caught[0].category is FitWarning
        assert str(caught[0].message) == f"the fit of this Toy is {level}\n- for a reason."
        assert caught[0].filename == __file__
    # As an error it still leaves the fit behind.
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        again = Toy()
        if said:
            with pytest.raises(FitWarning):
                again.fit(Y, X, instruments=W)
        else:
            again.fit(Y, X, instruments=W)
    np.testing.assert_array_equal(again.predict(X), toy.predict(X))


def test_treatment_kind_is_passed_on() -> None:
    flags = np.asarray([0.0, 1.0, 1.0, 0.0])
    assert Toy(treatment_kind="binary").fit(Y, flags, instruments=W).fitted_.schema.treatment.kind == "binary"
    with pytest.raises(DataError, match="treatment_kind"):
        Toy(treatment_kind="ordinal").fit(Y, X, instruments=W)
