from __future__ import annotations

from typing import Any

import pytest

from bgmiv.bench.plan import RunSpec, make_plan
from bgmiv.errors import ConfigError


def plan(**changes: Any) -> tuple[RunSpec, ...]:
    settings: dict[str, Any] = {
        "design": "demand",
        "n": [100],
        "rho": [0.5],
        "methods": ["tsls"],
        "preset": "default",
        "repeats": 2,
        "seed": 10,
    }
    return make_plan(**{**settings, **changes})


def test_run_id_is_stable_and_tells_specs_apart() -> None:
    spec = RunSpec("demand", 1000, 0.5, "bgm-iv", "paper", 0)
    assert spec.run_id == RunSpec("demand", 1000, 0.5, "bgm-iv", "paper", 0).run_id
    # Stored rows are found by this name: changing it orphans every store.
    assert spec.run_id == "eaf9f432fbe9b11d"
    others = {
        RunSpec("vector-proxy", 1000, 0.5, "bgm-iv", "paper", 0).run_id,
        RunSpec("demand", 5000, 0.5, "bgm-iv", "paper", 0).run_id,
        RunSpec("demand", 1000, 0.1, "bgm-iv", "paper", 0).run_id,
        RunSpec("demand", 1000, 0.5, "tsls", "paper", 0).run_id,
        RunSpec("demand", 1000, 0.5, "bgm-iv", "default", 0).run_id,
        RunSpec("demand", 1000, 0.5, "bgm-iv", "paper", 1).run_id,
    }
    assert len(others | {spec.run_id}) == 7


def test_whole_and_decimal_numbers_name_the_same_run() -> None:
    assert RunSpec("demand", 100, 1, "tsls", "default", 0) == RunSpec("demand", 100, 1.0, "tsls", "default", 0)
    assert (
        RunSpec("demand", 100, 1, "tsls", "default", 0).run_id
        == RunSpec("demand", 100, 1.0, "tsls", "default", 0).run_id
    )


def test_every_combination_once() -> None:
    specs = plan(n=[100, 200, 100], rho=[0.1, 0.9], methods=["tsls", "bgm-iv"], repeats=3)
    assert len(specs) == len(set(specs)) == 2 * 2 * 2 * 3
    assert {spec.seed for spec in specs} == {10, 11, 12}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"design": "airline"}, "airline.*demand, vector-proxy"),
        ({"methods": ["ols"]}, "ols.*bgm-iv"),
        ({"preset": "fast"}, "fast.*default"),
        ({"repeats": 0}, "repeats"),
        ({"n": [1]}, "n is 1"),
        ({"rho": [-2.0]}, "rho"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_plans_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        plan(**changes)
