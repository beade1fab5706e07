"""What mypy sees of a user's script: wrong names and types of arguments, and nothing where they are right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """\
import numpy as np
from bgmiv import BGMIV, NPIV, TSLS, Analysis, Interval, load

y = x = w = np.zeros(9)
model: TSLS = TSLS(covariance="robust").fit(y, x, instruments=w, clusters=w)
analysis: Analysis = model.summary(by="region", level=0.9, units="flights")
interval: Interval = model.ate_interval(t0=0.0, t1=1.0, sample_weight=w, method="usual")
model.report("report.html", title="Returns", compare={"NPIV": NPIV(random_state=np.random.default_rng(0))})
model.plot_curve(group=1, methods=True, t0=1.0, t1=2.0).set_title("curve")
load("fit").effect(t0=0, t1=1).mean()
model.fit(y, x, instrument=w)  # wrong
model.fit(y, x, w, w)  # wrong
model.summary(levels=0.9)  # wrong
model.report("report.html", title=3)  # wrong
model.plot_curve(grp=1)  # wrong
model.plot_effects(level="0.9")  # wrong
model.ate(t0=0.0)  # wrong
TSLS(degree=2)  # wrong
BGMIV("paper")  # wrong
"""


def test_wrong_arguments_of_a_script_are_seen(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    shown = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    errors = {int(line.split(":")[1]) for line in shown.splitlines() if ": error:" in line}
    assert errors == {i for i, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")}, shown
