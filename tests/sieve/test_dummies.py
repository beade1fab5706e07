"""Sieves of indicator columns: whatever pattern categories make, there is a fit."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.baselines.control_function import ControlFunctionConfig
from bgmiv.baselines.npiv import NPIVConfig
from bgmiv.bgm.config import BGMIVConfig
from bgmiv.bgm.last_stage import fit_sieve_stage
from bgmiv.data import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.effects import average, contrast
from bgmiv.intervals import interval_of
from bgmiv.sieve.fit import SieveConfig

SEED = 0
N = 400


def _patterns(rng: np.random.Generator) -> dict[str, dict[str, np.ndarray]]:
    letters = np.array(list("abcdefgh"))
    quarter, state = rng.integers(0, 4, N), rng.integers(0, 6, N)
    regions = letters[quarter]
    return {
        "three levels": {"region": letters[rng.integers(0, 3, N)]},
        "eight levels": {"region": letters[rng.integers(0, 8, N)]},
        "a number too": {"region": regions, "age": rng.normal(size=N)},
        "all quarters": {f"q{k}": (quarter == k).astype(np.float64) for k in range(4)},
        "a level that occurs once": {"region": np.where(np.arange(N) == 7, "once", regions)},
        "nested": {"state": letters[state], "region": letters[state // 2]},
        "one flag": {"flag": (quarter == 1).astype(np.float64)},
        "a flag of one row": {"flag": (np.arange(N) == 3).astype(np.float64), "region": regions},
        "twice": {"region": regions, "again": regions},
    }


def _table(pattern: str, seed: int, *, binary: bool, grouped: bool) -> IVData:
    rng = np.random.default_rng(seed)
    covariates = _patterns(rng)[pattern]
    w, u, e = rng.normal(size=(3, N))
    x = (w + u > 0).astype(np.float64) if binary else w + u
    kinds = {name: "categorical" if values.dtype.kind == "U" else "binary" for name, values in covariates.items()}
    kinds.pop("age", None)
    groups = np.arange(N) // 5 if grouped else None
    return IVData.from_arrays(
        x + u + 0.3 * e,
        x,
        instruments=w,
        covariates=covariates,
        blocks=kinds,
        treatment_kind="binary" if binary else "continuous",
        clusters=groups,
    )


# With groups, whole clusters are left out: what then has no row left is in the patterns of rare and many levels.
PATTERNS = list(_patterns(np.random.default_rng(0)))
RARE = ("eight levels", "a level that occurs once", "nested", "a flag of one row")


@pytest.mark.parametrize(
    ("pattern", "sampled"),
    [
        *((pattern, "plain") for pattern in PATTERNS),
        *((pattern, sampled) for pattern in RARE for sampled in ("binary treatment", "groups")),
    ],
)
def test_any_pattern_of_indicators_is_fitted(pattern: str, sampled: str) -> None:
    data = _table(pattern, 1, binary=sampled == "binary treatment", grouped=sampled == "groups")
    query = Query(np.array([[0.0], [1.0]]), Rows(data.covariates))
    for config in (NPIVConfig(), ControlFunctionConfig()):
        fitted = config.fit(data, SEED)
        found = interval_of(contrast(average(fitted, query, intervals=True).estimate), 0.95)
        # A direction of rounding errors would have a coefficient without bound.
        assert 0.1 < found.estimate < 2.0
        assert 0.1 < found.upper - found.lower < 1.5
        assert np.ptp(fitted.at(query)) < 4.0
    last = fit_sieve_stage(BGMIVConfig(last_stage=SieveConfig()), data)
    assert last is not None
    assert np.isfinite(last.function.coefficients).all()
    assert np.abs(last.function.roots["sampling"]).max() < 1e3
