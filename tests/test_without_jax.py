"""What needs no networks does not import the library that they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FIT = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import bgmiv
rng = np.random.default_rng(0)
cost, season, shock = rng.normal(size=(3, 1000))
price = 5 + cost + season + shock
sales = 40 - 3 * price + 2 * np.sin(season) + 4 * shock
model = bgmiv.{method}().fit(sales, price, instruments=cost, covariates={{"season": season}})
print(model.ate_interval(t0=5.0, t1=6.0))
model.report(sys.argv[1] + "/report.html")
model.save(sys.argv[1] + "/fit")
again = bgmiv.load(sys.argv[1] + "/fit")
assert np.array_equal(again.predict(5.0, season[:3]), model.predict(5.0, season[:3]))
print(sorted({{"jax", "equinox", "optax", "blackjax"}} & set(sys.modules)))
"""


@pytest.mark.parametrize("method", ["TSLS", "NPIV", "BGMIV"])
def test_a_fit_and_its_report_import_no_network_library(method: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIT.format(method=method), str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"
    assert (tmp_path / "report.html").exists()
