"""The same model in another coding gives the same answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bgmiv
from bgmiv.sieve.bases import ColumnBasis

N = 500


def _columns(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    w, v, u, e = rng.normal(size=(4, N))
    flag = (rng.random(N) < 0.3).astype(np.float64)
    x = w + 0.5 * v + u
    return {"w": w, "v": np.column_stack([v, flag]), "x": x, "u": u, "y": x * (1 + 0.5 * v) + v + u + e + 0.2 * x**2}


def _answer(method: str, t0: Any = 0.0, t1: Any = 1.0, **roles: np.ndarray) -> np.ndarray:
    model = getattr(bgmiv, method)(random_state=0, treatment_kind="auto")
    model.fit(roles["y"], roles["x"], instruments=roles["w"], covariates=roles["v"])
    found = model.ate_interval(t0=t0, t1=t1)
    return np.array([model.ate(t0=t0, t1=t1), found.lower, found.upper])


@pytest.mark.filterwarnings("ignore::bgmiv.errors.KindWarning")
@pytest.mark.parametrize("method", ["NPIV", "ControlFunction"])
def test_which_of_two_levels_of_the_treatment_is_0_does_not_matter(method: str) -> None:
    for seed in range(2):
        roles = _columns(seed)
        x = (roles["x"] > 0.3).astype(np.float64)
        y = x * (2 + 0.8 * roles["v"][:, 0]) + roles["v"][:, 0] + roles["u"]
        plain, swapped = (_answer(method, *to, **roles | {"x": z, "y": y}) for z, to in ((x, (0, 1)), (1 - x, (1, 0))))
        np.testing.assert_allclose(swapped, plain, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::bgmiv.errors.KindWarning")
def test_signs_levels_and_redundant_columns_do_not_matter() -> None:
    for seed in range(2):
        roles = _columns(seed)
        w, v = roles["w"], roles["v"]
        plain = _answer("NPIV", **roles)
        flag = v[:, 1]
        same = {
            "an instrument twice": {"w": np.column_stack([w, w])},
            "an instrument's combination": {"w": np.column_stack([w, 1.0 - 3.0 * w])},
            "another sign": {"w": -w},
            "0 for 1": {"v": np.column_stack([v[:, 0], 1.0 - flag])},
            "a covariate twice": {"v": np.column_stack([v, v[:, 0] * 1e-6])},
            "all indicators": {"v": np.column_stack([v, 1.0 - flag])},
        }
        for name, changed in same.items():
            np.testing.assert_allclose(_answer("NPIV", **roles | changed), plain, rtol=1e-6, err_msg=name)


@pytest.mark.filterwarnings("ignore::bgmiv.errors.KindWarning")
def test_an_indicator_of_one_row_takes_that_row_out_and_nothing_else() -> None:
    for seed in range(3):
        roles = _columns(seed)
        once = (np.arange(N) == 5).astype(np.float64)
        plain, marked = _answer("NPIV", **roles), _answer("NPIV", **roles | {"v": np.column_stack([roles["v"], once])})
        width = plain[2] - plain[1]
        assert marked[2] - marked[1] == pytest.approx(width, rel=0.1)
        assert marked[0] == pytest.approx(plain[0], abs=0.1 * width)


def test_columns_beyond_the_rows_are_kept_for_a_penalty() -> None:
    rng = np.random.default_rng(0)
    basis = ColumnBasis.fit(rng.normal(size=(20, 30)), rng)
    assert len(basis.used) == 30


def test_units_do_not_matter_without_noise() -> None:
    """What the columns leave of such an outcome is rounding, which must not decide on a curve."""
    w, v, u = np.random.default_rng(0).normal(size=(3, 60))
    x = 5.0 + w + v + u
    y = 100.0 + 10.0 * (x + v + u)
    roles = {"w": w, "v": v, "x": x, "y": y}
    plain = _answer("NPIV", **roles)
    for a, b, c, d in ((1000.0, 0.01, 2.0, 50.0), (3.0, 1.0, 1.0, 1.0), (1.0, 1.7, 1.0, 1.0)):
        changed = _answer("NPIV", 0.0, b, y=a * y, x=b * x, w=c * w, v=d * v)
        np.testing.assert_allclose(changed / a, plain, rtol=1e-6)
