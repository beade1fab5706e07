"""What the data show of the instruments, against closed forms and the library's own linear estimates."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.analysis.instruments import instrument_views
from bgmiv.data.ivdata import IVData
from bgmiv.diagnostics.sensitivity import sensitivity
from bgmiv.linear_iv import LinearIV

N = 400
RNG = np.random.default_rng(0)
V, U = RNG.normal(size=(2, N))
W = (RNG.normal(size=N) + V > 0).astype(float)
X = W + 0.5 * V + U + RNG.normal(size=N)
Y = 2.0 * X + V - U
MANY = np.column_stack([W, V + RNG.normal(size=N)])


def views(w: np.ndarray, **more: object):
    data = IVData.from_arrays(Y, X, instruments=w, **more)
    return data, instrument_views(data, 0.95, linear=True)


def test_two_values_without_covariates_are_two_means() -> None:
    data, found = views(W)
    stage, reduced = found.means
    assert (stage.name, stage.along, stage.place) == ("treatment", "instrument_0", (0.0, 1.0))
    assert stage.mean == pytest.approx([X[W == 0].mean(), X[W == 1].mean()])
    assert stage.fitted == pytest.approx(stage.mean)
    assert sum(stage.n_rows) == N
    wald = np.diff(reduced.mean)[0] / np.diff(stage.mean)[0]
    assert wald == pytest.approx(LinearIV.of(data).estimate().coefficient)
    assert found.balance == ()


def test_covariates_are_held_at_their_means() -> None:
    """By a regression on bins and covariates, whose constant is the mean at average covariates."""
    stage = views(W, covariates=V)[1].means[0]
    right = np.column_stack([W == 0, W == 1, V - V.mean()])
    assert stage.mean == pytest.approx(np.linalg.lstsq(right, X, rcond=None)[0][:2])
    weighted = views(W, covariates=V, sample_weight=1.0 + W)[1].means[0]
    assert weighted.mean != pytest.approx(stage.mean)


def test_several_instruments_are_one_axis() -> None:
    stage, reduced = views(MANY, covariates={"age": V + U})[1].means
    assert stage.along == reduced.along == ""
    assert len(stage.place) == 16
    assert sorted(stage.place) == list(stage.place)
    # In units of the treatment: the regression on what is predicted has a slope of one.
    assert np.polyfit(stage.place, stage.fitted, 1)[0] == pytest.approx(1.0)


def test_balance_is_the_standardised_difference_and_its_test() -> None:
    noise = RNG.normal(size=N)
    (found,) = views(W, covariates={"noise": noise, "age": V})[1].balance
    low, high = V[W == 0], V[W == 1]
    assert found.binary
    assert found.covariates[0] == "age"
    assert found.differences[0] == pytest.approx((high.mean() - low.mean()) / np.sqrt((low.var() + high.var()) / 2))
    assert found.p < 1e-6
    assert views(W, covariates={"noise": noise})[1].balance[0].p > 0.05
    by_number = views(MANY[:, 1], covariates={"age": V})[1].balance[0]
    assert not by_number.binary
    assert by_number.differences == pytest.approx([np.corrcoef(MANY[:, 1], V)[0, 1]])


@pytest.mark.parametrize("gamma", [0.0, 0.3, -1.0])
def test_direct_effects_are_those_of_sensitivity(gamma: float) -> None:
    data, found = views(MANY, covariates=V)
    (first, second) = found.direct
    wanted = sensitivity(data, {"instrument_0": (gamma, gamma)})
    centre, low, high = first.interval(gamma, 0.95)
    assert (low, high) == pytest.approx((wanted.lower, wanted.upper))
    assert centre == pytest.approx((low + high) / 2)
    assert second.interval(0.0, 0.95) == pytest.approx(first.interval(0.0, 0.95))
    ends = first.interval(first.breakdown(0.95), 0.95)[1:]
    assert min(map(abs, ends)) == pytest.approx(0.0, abs=1e-9)
