"""The arguments and shapes of EconML, without EconML; `isolated/test_econml_itself.py` compares with the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bgmiv import KIV, TSLS
from bgmiv.adapters.econml import EconMLEstimator
from bgmiv.errors import ConfigError, DataError, NotFittedError

rng = np.random.default_rng(5)
Z, V, C, U = rng.normal(size=(4, 500))
T = Z + V + 0.5 * C + U
Y = 2.0 * T + V + C - 2.0 * U
X, W = V[:, None], C[:, None]


def linear() -> EconMLEstimator:
    return EconMLEstimator(TSLS())


def kiv() -> EconMLEstimator:
    return EconMLEstimator(KIV(random_state=0))


def test_effects_and_intervals_are_those_of_the_method() -> None:
    given = TSLS()
    model = EconMLEstimator(given).fit(Y, T, Z=Z, X=X)
    plain = TSLS().fit(Y, T, instruments=Z, covariates=V)
    assert not hasattr(given, "fitted_")
    np.testing.assert_allclose(model.effect(X[:4], T0=1, T1=3), plain.effect(V[:4], t0=1, t1=3))
    np.testing.assert_allclose(model.ate(X), plain.ate(V, t0=0, t1=1))
    slope = plain.marginal_effect(0.0, V[:4], step=1.0)
    np.testing.assert_allclose(model.marginal_effect(T[:4], X[:4]), slope)
    interval = plain.effect_interval(V[:4], t0=1, t1=3, level=0.9)
    np.testing.assert_allclose(model.effect_interval(X[:4], T0=1, T1=3, alpha=0.1), [interval.lower, interval.upper])
    average = plain.ate_interval(V, t0=0, t1=1)
    np.testing.assert_allclose(model.ate_interval(X), [average.lower, average.upper])


def test_w_is_averaged_over_training_rows() -> None:
    """With an interaction of treatment and W the effect at a row of X is the mean over W."""
    model = kiv().fit(Y + 1.5 * T * C, T, Z=Z, X=X, W=W)
    rows = np.unique(np.linspace(0, 499, 200).astype(int))
    own = {"X0": np.full(200, 0.5), "W0": C[rows]}
    np.testing.assert_allclose(model.effect([[0.5]]), [model.estimator_.ate(own, t0=0.0, t1=1.0)])


@pytest.mark.parametrize("as_matrix", [False, True])
def test_shapes(as_matrix: bool) -> None:
    outcome, extra = (Y[:, None], (1,)) if as_matrix else (Y, ())
    model = linear().fit(outcome, T[:, None], Z=np.column_stack([Z, Z**2]), X=X, W=W)
    assert model.effect(X[:7], T0=np.zeros(7), T1=np.ones((7, 1))).shape == (7, *extra)
    assert model.marginal_effect(T[:7], X[:7]).shape == (7, *extra)
    ends = (*model.effect_interval(X[:7]), *model.ate_interval(X))
    assert [np.shape(end) for end in ends] == [(7, *extra), (7, *extra), extra, extra]
    assert np.shape(model.ate(X)) == extra
    without = linear().fit(outcome, T, Z=Z, W=W)
    assert without.effect().shape == (1, *extra)
    assert without.effect(T0=np.zeros(3), T1=np.arange(3.0)).shape == (3, *extra)


def test_tables_and_levels() -> None:
    frame = pd.DataFrame({"age": V, "region": np.where(C > 0, "n", "s")})
    model = linear().fit(pd.Series(Y, name="sales"), pd.Series(T), Z=pd.Series(Z), X=frame)
    np.testing.assert_allclose(model.effect(frame[:3]), np.full(3, model.ate(frame)))
    with pytest.raises(DataError, match="X must have the columns of the fit, age, region; got region, age"):
        model.effect(frame[["region", "age"]])


def test_errors_name_the_argument_and_the_fix() -> None:
    with pytest.raises(NotFittedError, match="call fit"):
        linear().effect(X)
    model = linear().fit(Y, T, Z=Z, X=X)
    ages = pd.DataFrame({"age": V})
    bad: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ConfigError, "level must", lambda: model.effect_interval(X, alpha=5)),
        (DataError, "columns of the fit, X0; got none", model.effect),
        (DataError, "columns of the fit, none; got X0", lambda: linear().fit(Y, T, Z=Z, W=W).effect(X)),
        (DataError, "T1 has 3 rows but X has 2", lambda: model.effect(X[:2], T1=[1, 2, 3])),
        (DataError, r"Y must be one column, got shape \(500, 2\)", lambda: linear().fit(np.stack([Y, Y], 1), T, Z=Z)),
        (DataError, "both X and W have a column 'age'", lambda: linear().fit(Y, T, Z=Z, X=ages, W=ages)),
        (ConfigError, "levels and no slope", lambda: linear().fit(Y, T > 0, Z=Z, X=X).marginal_effect(0, X)),
        (ConfigError, "estimator must be a bgmiv method", lambda: EconMLEstimator(3).fit(Y, T, Z=Z)),
        (ConfigError, "point estimates only", lambda: kiv().fit(Y[:100], T[:100], Z=Z[:100]).effect_interval()),
    ]
    for error, words, call in bad:
        with pytest.raises(error, match=words):
            call()


def test_weights_and_groups_reach_the_method() -> None:
    counts = np.where(np.arange(500) % 5 == 0, 3, 1)
    rows = np.repeat(np.arange(500), counts)
    weighted = linear().fit(Y, T, Z=Z, X=X, sample_weight=counts, clusters=np.arange(500) // 2)
    repeated = linear().fit(Y[rows], T[rows], Z=Z[rows], X=X[rows])
    assert weighted.ate(X) == pytest.approx(repeated.ate(X))
    assert weighted.estimator_.data_.groups is not None
