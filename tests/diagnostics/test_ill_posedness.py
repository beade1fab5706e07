"""What the instruments show of a curve: singular values against the closed form of normal variables."""

from __future__ import annotations

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.diagnostics.ill_posedness import visible_shapes


def test_of_normal_variables_they_are_powers_of_the_correlation() -> None:
    """Hermite polynomials of a normal treatment are left with ρ, ρ², ρ³ given a normal instrument (Mehler)."""
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, 20_000))
    x = 0.8 * w + 0.6 * u + v
    data = IVData.from_arrays(u, x - v, instruments=w, covariates=v)
    values, visible, possible = visible_shapes(data)
    np.testing.assert_allclose(values[:3], [0.8, 0.64, 0.512], atol=0.02)
    assert visible > 4
    assert possible == 7


def test_two_values_of_an_instrument_show_one_shape() -> None:
    rng = np.random.default_rng(0)
    u = rng.normal(size=500)
    w = (np.arange(500) % 2).astype(np.float64)
    data = IVData.from_arrays(u, w + u, instruments=w)
    values, visible, possible = visible_shapes(data)
    assert (len(values), visible, possible) == (1, 1, 7)


def test_a_treatment_of_few_values_has_as_many_shapes_as_steps() -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 1000))
    for n_values in (2, 3, 6):
        x = np.clip(np.round(w + 0.5 * u + 0.5 * (n_values - 1)), 0, n_values - 1)
        data = IVData.from_arrays(u, x, instruments=w, treatment_kind="continuous")
        found = visible_shapes(data)
        assert found.possible == len(found.values) == n_values - 1
        assert found.visible >= min(3, n_values - 1)
