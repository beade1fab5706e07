"""Fit, save and report in a folder, and be refused at home, where nothing may be written: run by robustness_fits.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import bgmiv
from bgmiv.errors import BGMIVError

rng = np.random.default_rng(0)
w, v, u = rng.normal(size=(3, 80))
x = w + v + u


def fit(**more: Any) -> bgmiv.BGMIV:
    """A tiny fit of networks."""
    model = bgmiv.BGMIV(preset="paper-qmc", epochs=1, iterations=2, batch_size=16, random_state=0, **more)
    return model.fit(2 * x + v - u, x, instruments=w, covariates=v)


def main(folder: Path, home: Path) -> None:
    """Everything works in the folder; at home each is an error of ours."""
    try:
        (home / "file").write_text("")
        sys.exit("home is writable")
    except PermissionError:
        pass
    model = fit(checkpoint=folder / "checkpoint")
    model.save(folder / "model")
    assert np.array_equal(bgmiv.load(folder / "model").predict(x, v), model.predict(x, v))
    simple = bgmiv.TSLS().fit(2 * x + v - u, x, instruments=w, covariates=v)
    simple.report(folder / "report.html")
    for task in (
        lambda: fit(checkpoint=home / "checkpoint"),
        lambda: model.save(home / "model"),
        lambda: simple.report(home / "report.html"),
        lambda: bgmiv.load(home / "closed"),
    ):
        try:
            task()
        except BGMIVError as error:
            print(error)
        else:
            sys.exit("not refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path.home())
