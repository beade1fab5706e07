"""Sensitivity to direct effects: the union over corners against a grid, and the breakdown value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linearmodels.iv import IV2SLS
from scipy.stats import t as student

from bgmiv import TSLS
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Rows
from bgmiv.diagnostics.sensitivity import sensitivity
from bgmiv.errors import ConfigError, DataError


def simulate(q: int = 1, n: int = 300) -> IVData:
    rng = np.random.default_rng(0)
    u = rng.normal(size=n)
    w, v = 3.0 * rng.normal(size=(n, q)), rng.normal(size=n)
    x = 0.2 * w.sum(axis=1) + v + u * (1.0 + 0.3 * np.abs(w[:, 0]))
    names = {f"z{i}": column for i, column in enumerate(w.T)}
    return IVData.from_arrays(10.0 * (x + v - u), x, instruments=names, covariates={"v": v})


def interval(data: IVData, gamma: Any) -> tuple[float, float]:
    """The interval of linearmodels for given direct effects."""
    exogenous = np.column_stack([np.ones(data.n_rows), data.covariates])
    outcome = data.outcome - data.instruments @ np.atleast_1d(gamma)
    model = IV2SLS(outcome, exogenous, data.treatment, data.instruments)
    ends = model.fit(cov_type="robust", debiased=True).conf_int().iloc[-1]
    return float(ends["lower"]), float(ends["upper"])


def points_only(fitted: Any) -> Any:
    """The same fit as a method that gives point estimates only."""
    kind = type("PointsOnly", (type(fitted),), {"interval_kind": property(lambda self: "")})
    copy = object.__new__(kind)
    copy.__dict__.update(fitted.__dict__)
    return copy


def test_the_union_is_that_over_a_grid() -> None:
    data = simulate(2)
    found = sensitivity(data, [0.5, (0.0, 0.3)])
    grid = [interval(data, (a, b)) for a in np.linspace(-0.5, 0.5, 5) for b in np.linspace(0.0, 0.3, 4)]
    assert found.lower == pytest.approx(min(ends[0] for ends in grid), rel=1e-6)
    assert found.upper == pytest.approx(max(ends[1] for ends in grid), rel=1e-6)
    assert found.gamma == ((-0.5, 0.5), (0.0, 0.3))


def test_normal_direct_effects_add_their_variance() -> None:
    data = simulate()
    found = sensitivity(data, (-0.1, 0.3))
    none, one = (np.asarray(interval(data, gamma)) for gamma in (0.0, 1.0))
    moved = one.mean() - none.mean()
    quantile = student.ppf(0.975, data.n_rows - 3)
    variance = (np.diff(none)[0] / (2 * quantile)) ** 2 + (moved * 0.2 / 1.959964) ** 2
    centre = none.mean() + 0.1 * moved
    ends = centre - quantile * variance**0.5, centre + quantile * variance**0.5
    assert (found.local_lower, found.local_upper) == pytest.approx(ends, rel=1e-5)
    assert found.lower < found.local_lower < found.local_upper < found.upper


def test_at_the_breakdown_the_union_just_holds_zero() -> None:
    data = simulate()
    found = sensitivity(data, 0.0)
    # Without direct effects, the usual interval.
    assert (found.lower, found.upper) == pytest.approx(interval(data, 0.0), rel=1e-6)
    assert found.breakdown > 0
    g = found.breakdown / float(np.std(data.instruments))
    at, below = sensitivity(data, g * 1.0001), sensitivity(data, g * 0.999)
    assert at.lower <= 0.0 <= at.upper
    assert below.lower > 0.0
    assert "stays positive" in below.reading
    assert "compatible with no effect" in at.reading


def test_breakdown_of_an_effect_that_is_not_there_is_zero() -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 200))
    found = sensitivity(IVData.from_arrays(u, w + u, instruments=w), 0.1)
    assert found.breakdown == 0.0
    assert "contains zero even without a direct effect" in found.reading


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [
        (0.5, ((-0.5, 0.5), (-0.5, 0.5))),
        ([0.1, 0.2], ((-0.1, 0.1), (-0.2, 0.2))),
        ([(0.0, 0.1), 0.2], ((0.0, 0.1), (-0.2, 0.2))),
        ({"z1": 0.3}, ((0.0, 0.0), (-0.3, 0.3))),
        ((0.0, 0.4), ((0.0, 0.4),)),
    ],
)
def test_forms_of_gamma(gamma: Any, expected: Any) -> None:
    assert sensitivity(simulate(len(expected)), gamma).gamma == expected


@pytest.mark.parametrize("gamma", [-0.1, "much", [0.1, 0.2, 0.3], {"age": 0.1}, (0.2, 0.1, 0.4), float("nan"), None])
def test_bad_gamma_is_refused(gamma: Any) -> None:
    with pytest.raises(ConfigError, match="gamma"):
        sensitivity(simulate(2), gamma)


def test_by_the_estimator() -> None:
    data = simulate()
    model = TSLS().fit(data.outcome, data.treatment, instruments=data.instruments, covariates=data.covariates)
    found = model.sensitivity(0.2)
    # The width of the fit's interval is kept, and that of the linear effect grows.
    assert found.fit_breakdown == pytest.approx(found.breakdown, rel=0.2)
    assert "union of 95% intervals" in str(found)
    assert "Conley" in str(found)
    assert "union of 95% intervals" in found._repr_html_()
    row = found.to_frame().iloc[0]
    assert row[["lower", "upper", "fit_breakdown"]].tolist() == [found.lower, found.upper, found.fit_breakdown]
    assert row.iloc[:2].tolist() == [-0.2, 0.2]
    with pytest.raises(ConfigError, match="level"):
        model.sensitivity(0.2, level=95)
    # A method without intervals borrows the width of 2SLS, which here is its own.
    points = points_only(model.fitted_)
    borrowed = sensitivity(data, 0.2, fitted=points, rows=Rows(data.covariates))
    assert borrowed.fit_breakdown == pytest.approx(found.fit_breakdown, rel=1e-3)


def test_levels_have_no_single_effect() -> None:
    data = simulate(2)
    levels = np.array(["low", "middle", "high"])[np.digitize(data.treatment, [-1.0, 1.0])]
    model = TSLS().fit(data.outcome, levels, instruments=data.instruments, covariates=data.covariates)
    with pytest.raises(DataError, match="a single linear effect"):
        model.sensitivity(0.1)
