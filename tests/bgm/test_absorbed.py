"""A covariate with hundreds of levels in BGM-IV: networks see its indicators, the last stage absorbs them."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from bgmiv.bgm.config import BGMIVConfig
from bgmiv.bgm.estimator import BGMIV, PRESETS
from bgmiv.data.formula import from_formula
from bgmiv.data.query import query_at
from bgmiv.sieve.fit import Learned, SieveConfig, fit_sieve

FIRM = np.repeat(np.arange(300), 4)


def panel(curve: float) -> tuple[pd.DataFrame, np.ndarray]:
    """A panel of 300 firms, and the mean of its treatments given instrument and firm."""
    rng = np.random.default_rng(0)
    w, u, e = rng.normal(size=(3, 1200))
    own = 2.0 * rng.normal(size=300)[FIRM]
    expected = own + 0.7 * w
    x = expected + u
    y = curve * x**2 - x + 3.0 * own + 0.7 * u + 0.7 * e
    return pd.DataFrame({"y": y, "x": x, "w": w, "firm": FIRM.astype(str)}), expected


def test_a_fit_absorbs_the_levels_in_its_last_stage(small_preset: BGMIVConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = panel(0.0)
    monkeypatch.setitem(PRESETS, "default", lambda: small_preset)
    model = BGMIV(networks=True, iterations=20, batch_size=32, random_state=0, progress=False)
    with warnings.catch_warnings():
        # Twenty steps are too few for networks.
        warnings.simplefilter("ignore")
        model.fit_formula("y ~ C(firm) + [x ~ w]", table)
    last = model.fitted_.last_stage
    assert last is not None
    assert last.effects is not None
    assert last.effects.sizes == (300,)
    assert model.ate(t0=0.0, t1=1.0) == pytest.approx(-1.0, abs=0.25)


def test_a_learned_function_is_net_of_the_levels() -> None:
    table, expected = panel(0.25)
    data = from_formula("y ~ C(firm) + [x ~ w]", table)[0]
    mean = expected**2 + 1.0
    learned = Learned(mean + 0.1 * np.random.default_rng(1).normal(size=1200), mean, expected[:, None])
    found = fit_sieve(SieveConfig(), data, learned=learned)
    function = found.function
    assert function.weight == pytest.approx(0.25, abs=0.05)
    query = query_at(data.schema, data.treatment, data)
    encoded = function.encode(data.schema, data.covariates)
    squares = table["x"].to_numpy()[None] ** 2
    gaps = np.bincount(FIRM, table["y"] - function.at(query, encoded, squares)[0]) / 4.0
    assert np.mean(gaps) == pytest.approx(0.0, abs=0.2)
    # Left-out predictions are compared with the outcomes of the same firm.
    left = table["y"].to_numpy() - found.left_out
    assert np.abs(np.bincount(FIRM, left)).max() < 1e-8
    sources = {source.name: source for source in function.factors(query, encoded, squares)}
    assert np.isfinite(sources["sampling"].factors).all()
