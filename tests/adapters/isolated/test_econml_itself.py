"""The same calls on EconML and on its shape here: `make adapters` runs this in an environment of its own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from bgmiv import BGMIV, TSLS
from bgmiv.adapters.econml import EconMLEstimator

with warnings.catch_warnings():
    # What EconML's own dependencies warn of is not ours to judge.
    warnings.simplefilter("ignore")
    dml = pytest.importorskip("econml.iv.dml")

pytestmark = pytest.mark.filterwarnings("ignore")
OPTIMISED = True

rng = np.random.default_rng(11)
N = 1500
Z, V, C, U = rng.normal(size=(4, N))
T = 1.5 * Z + 0.5 * V + 0.5 * C + U
Y = 2.0 * T + V + C - 2.0 * U + 0.3 * rng.normal(size=N)
X, W = V[:, None], C[:, None]


def theirs(outcome: np.ndarray, treatment: np.ndarray, X: Any, W: Any) -> Any:
    from sklearn.linear_model import LinearRegression

    stages = {f"model_{part}_xw": LinearRegression() for part in "ytz"}
    return dml.OrthoIV(**stages, cv=2, random_state=0).fit(outcome, treatment, Z=Z, X=X, W=W)


def shapes(model: Any, X: Any, treatments: np.ndarray) -> list[tuple[int, ...]]:
    m = len(treatments)
    found = [
        model.effect(X, T0=0, T1=1),
        model.effect(X, T0=np.zeros(m), T1=np.ones(m)),
        *model.effect_interval(X, T0=0, T1=1, alpha=0.1),
        model.ate(X, T0=0, T1=1),
        *model.ate_interval(X, T0=0, T1=1),
        model.marginal_effect(treatments, X),
    ]
    return [np.shape(value) for value in found]


@pytest.mark.parametrize("with_x", [True, False])
@pytest.mark.parametrize("as_matrix", [True, False])
def test_the_shapes_are_econmls(with_x: bool, as_matrix: bool) -> None:
    outcome = Y[:, None] if as_matrix else Y
    asked = X if with_x else None
    rows = X[:5] if with_x else None
    treatments = T[:5] if with_x else T[:1]
    ours = EconMLEstimator(TSLS()).fit(outcome, T, Z=Z, X=asked, W=W)
    assert shapes(ours, rows, treatments) == shapes(theirs(outcome, T, asked, W), rows, treatments)


def test_the_linear_effect_is_econmls() -> None:
    """Two-stage least squares and orthogonal IV agree where the effect is linear, and both hold the truth."""
    ours, reference = EconMLEstimator(TSLS()).fit(Y, T, Z=Z, X=X, W=W), theirs(Y, T, X, W)
    assert ours.ate(X) == pytest.approx(reference.ate(X), abs=0.05)
    for model in (ours, reference):
        lower, upper = model.ate_interval(X)
        assert lower < 2.0 < upper
    wide, narrow = (model.ate_interval(X)[1] - model.ate_interval(X)[0] for model in (reference, ours))
    assert 0.5 < wide / narrow < 2.0


def test_bgm_iv_agrees_on_linear_data() -> None:
    ours = EconMLEstimator(BGMIV(random_state=0, members=2, iterations=800)).fit(Y, T, Z=Z, X=X, W=W)
    assert ours.ate(X, T0=-1, T1=1) == pytest.approx(theirs(Y, T, X, W).ate(X, T0=-1, T1=1), abs=0.4)
    lower, upper = ours.ate_interval(X, T0=-1, T1=1)
    assert lower < ours.ate(X, T0=-1, T1=1) < upper
