"""Kills, damage and several runners at once, in small numbers; `make robustness` has the full counts."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

import robustness
import robustness_fits
from bgmiv.bench.evaluate import run_one
from bgmiv.bench.store import RowStore
from robustness import Counts
from robustness_fits import Faults

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
SMALL = {"n": 5000, "repeats": 6, "workers": 1}


@LINUX
@pytest.mark.slow
def test_kills_and_contests_lose_and_double_nothing(tmp_path: Path) -> None:
    # Workers give the errors of this process: test_runner.py.
    errors = {key.spec: run_one(key.spec).structural_mse for key in robustness.run_keys(SMALL["n"], SMALL["repeats"])}
    assert len(errors) == 6
    # What a lost worker costs: test_executors.py.
    with robustness.trial(tmp_path / "driver", **SMALL) as made:
        assert robustness.crash(made, "driver", 1, random.Random(1), errors) == Counts(times=1)
    with robustness.trial(tmp_path / "contest", **SMALL) as made:
        assert robustness.contend(made, 2, errors) == Counts(times=1)


@pytest.mark.slow
def test_damage_is_noticed_and_repaired(tmp_path: Path) -> None:
    found = robustness.damage(RowStore(tmp_path), robustness.run_keys(100, 3), 20, random.Random(2))
    assert found == Counts(times=20)


@pytest.mark.slow
@LINUX
def test_a_full_disk_at_each_step_of_writing_tears_nothing() -> None:
    found = robustness_fits.run_trial("a full disk at each step of writing")
    assert found.times > 10
    assert found == Faults(times=found.times)
