"""A round through an installed archive: `make dist` runs this in a clean environment, away from the sources."""

from __future__ import annotations

import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np

import bgmiv

SCRIPT = """
import bgmiv

model = bgmiv.TSLS()
reveal_type(model.fit([1.0], [1.0], instruments=[1.0]))
reveal_type(model.ate_interval(t0=0.0, t1=1.0))
reveal_type(bgmiv.load("folder"))
"""


def main() -> None:
    """Fit, ask, report, save and open; then leave a user's script whose types mypy is to find."""
    home = Path(bgmiv.__file__).parent
    assert Path(sys.prefix) in home.parents, f"{home} is not the installed package"
    assert (home / "py.typed").exists()
    assert version("pybgmiv") == bgmiv.__version__
    # A short training, which the fit is right to warn of.
    warnings.simplefilter("ignore", bgmiv.FitWarning)
    cost, season, shock = np.random.default_rng(0).normal(size=(3, 500))
    price = 5 + cost + season + shock
    sales = 40 - 3 * price + season + 4 * shock
    with tempfile.TemporaryDirectory() as place:
        for model in (bgmiv.TSLS(), bgmiv.BGMIV(random_state=0, members=2, iterations=200)):
            model.fit(sales, price, instruments=cost, covariates={"season": season})
            found = model.ate_interval(t0=5.0, t1=6.0)
            assert found.lower < -3.0 < found.upper, found
            page = model.report(Path(place) / f"{type(model).__name__}.html", no_instrument=False)
            assert page.stat().st_size > 10_000
            model.save(Path(place) / type(model).__name__)
            again = bgmiv.load(Path(place) / type(model).__name__)
            at = {"season": np.zeros(1)}
            np.testing.assert_array_equal(again.predict(6.0, at), model.predict(6.0, at))
    Path("user_script.py").write_text(SCRIPT)


if __name__ == "__main__":
    main()
