"""What mypy sees of a user's script: `make lint` reads it, and an ignored error that is none is an error there."""

from __future__ import annotations

import numpy as np

from bgmiv import BGMIV, NPIV, TSLS, Analysis, Interval, load

__all__ = ["right_arguments", "wrong_arguments"]


def right_arguments() -> tuple[Analysis, Interval]:
    """Names and types that are right; each result has the type that its documentation says."""
    y = x = w = np.zeros(9)
    model: TSLS = TSLS(covariance="robust").fit(y, x, instruments=w, clusters=w)
    analysis: Analysis = model.summary(by="region", level=0.9, units="flights")
    interval: Interval = model.ate_interval(t0=0.0, t1=1.0, sample_weight=w, method="usual")
    model.report("report.html", title="Returns", compare={"NPIV": NPIV(random_state=np.random.default_rng(0))})
    model.plot_curve(group=1, methods=True, t0=1.0, t1=2.0).set_title("curve")
    load("fit").effect(t0=0, t1=1).mean()
    return analysis, interval


def wrong_arguments(model: TSLS) -> None:
    """Wrong names and types, each of which mypy must see."""
    y = x = w = np.zeros(9)
    model.fit(y, x, instrument=w)  # type: ignore[call-arg]
    model.fit(y, x, w, w)  # type: ignore[call-arg]
    model.summary(levels=0.9)  # type: ignore[call-arg]
    model.report("report.html", title=3)  # type: ignore[arg-type]
    model.plot_curve(grp=1)  # type: ignore[call-arg]
    model.plot_effects(level="0.9")  # type: ignore[arg-type]
    model.ate(t0=0.0)  # type: ignore[call-arg]
    TSLS(degree=2)  # type: ignore[call-arg]
    BGMIV("paper")  # type: ignore[arg-type, call-arg]
