"""What needs no networks does not import the library that they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FIT = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import bgmiv
rng = np.random.default_rng(0)
cost, season, shock = rng.normal(size=(3, 1000))
price = 5 + cost + season + shock
sales = 40 - 3 * price + 2 * np.sin(season) + 4 * shock
for method in (bgmiv.TSLS, bgmiv.NPIV, bgmiv.BGMIV):
    model = method().fit(sales, price, instruments=cost, covariates={"season": season})
    model.ate_interval(t0=5.0, t1=6.0)
    place = sys.argv[1] + "/" + method.__name__
    model.report(place + ".html")
    model.save(place)
    again = bgmiv.load(place)
    assert np.array_equal(again.predict(5.0, season[:3]), model.predict(5.0, season[:3]))
    print(method.__name__, sorted({"jax", "equinox", "optax", "blackjax"} & set(sys.modules)))
"""


def test_a_fit_and_its_report_import_no_network_library(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIT, str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["TSLS []", "NPIV []", "BGMIV []"]
    assert len(list(tmp_path.glob("*.html"))) == 3
