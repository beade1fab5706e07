from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bgmiv.bench.plan import Plan, RunSpec, Sweep, identify, load_plan, ready_plans
from bgmiv.designs import DESIGNS
from bgmiv.errors import ConfigError
from bgmiv.registry import METHODS

PLAN = """
title = "mine"

[[sweep]]
designs = ["demand"]
n = [100, 200]
rho = [0.1, 0.5]
methods = ["tsls"]
repeats = 4
seed = 3

[[sweep]]
designs = ["demand"]
n = [200]
rho = [0.5]
methods = ["tsls", "kiv"]
repeats = 2
seed = 3
"""


def sweep(**changes: Any) -> Sweep:
    settings: dict[str, Any] = {
        "designs": ["demand"],
        "n": [100],
        "rho": [0.5],
        "methods": ["tsls"],
        "repeats": 2,
        "seed": 10,
    }
    return Sweep(**{**settings, **changes})


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "mine.toml").write_text(PLAN)
    return load_plan(tmp_path / "mine.toml")


def test_whole_and_decimal_numbers_name_the_same_run() -> None:
    whole, decimal = (RunSpec("demand", 100, rho, "tsls", "default", 0) for rho in (1, 1.0))
    assert whole == decimal
    assert repr(whole) == repr(decimal)


def test_a_run_is_its_specification_and_the_algorithm_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec("demand", 100, 0.5, "tsls-noiv", "default", 0)
    key = identify(spec)
    assert (key.spec, key.method_version, key.design_version) == (spec, METHODS["tsls"].version_of("default"), 1)
    monkeypatch.setitem(METHODS, "tsls", replace(METHODS["tsls"], versions={"default": 7}))
    monkeypatch.setitem(DESIGNS, "demand", replace(DESIGNS["demand"], algorithm_version=3))
    later = identify(spec)
    assert later == replace(key, method_version=7, design_version=3)
    assert later.run_id != key.run_id
    for unknown, words in (
        (replace(spec, method="ols"), "unknown method 'ols'"),
        (replace(spec, design="airline"), "no design is called 'airline'"),
    ):
        with pytest.raises(ConfigError, match=words):
            identify(unknown)


def test_every_combination_once() -> None:
    specs = sweep(n=[100, 200, 100], rho=[0.1, 0.9], methods=["tsls", "bgm-iv"], repeats=3).specs()
    assert len(specs) == len(set(specs)) == 2 * 2 * 2 * 3
    assert {spec.seed for spec in specs} == {10, 11, 12}


def test_a_method_without_a_preset_takes_its_nearest() -> None:
    specs = sweep(methods=["bgm-iv", "kiv", "tsls"], presets=["default", "paper-qmc"], repeats=1).specs()
    assert [(spec.method, spec.preset) for spec in specs] == [
        ("bgm-iv", "default"),
        ("bgm-iv", "paper-qmc"),
        ("kiv", "default"),
        ("kiv", "paper"),
        ("tsls", "default"),
    ]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"designs": ["airline"]}, "airline.*demand, vector-proxy"),
        ({"methods": ["ols"]}, "ols.*bgm-iv"),
        ({"presets": ["fast"]}, "fast.*default"),
        ({"repeats": 0}, "repeats"),
        ({"n": [1]}, "n is 1"),
        ({"n": ["many"]}, "n holds 'many'; it takes a whole number"),
        ({"n": []}, "n must be a list"),
        ({"rho": [-2.0]}, "rho"),
        ({"methods": "tsls"}, "methods must be a list"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_sweeps_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        sweep(**changes)


def test_a_plan_lists_each_run_once(plan: Plan) -> None:
    assert (plan.name, plan.title) == ("mine", "mine")
    assert len(plan.specs) == len(set(plan.specs)) == 4 * 4 + 2
    assert plan.specs[0] == RunSpec("demand", 100, 0.1, "tsls", "default", 3)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [({"repeats": 3}, 4 * 3 + 2), ({"n": [100]}, 8), ({"methods": ["kiv"]}, 2), ({"rho": [0.5], "repeats": 1}, 3)],
)
def test_a_part_of_a_plan(plan: Plan, wanted: dict[str, Any], count: int) -> None:
    part = plan.part(**wanted)
    assert len(part.specs) == count
    assert set(part.specs) <= set(plan.specs)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"repeats": 0}, "repeats is 0"),
        ({"n": [300]}, "the plan 'mine' has no n 300; it has 100, 200"),
        ({"methods": ["dfiv"]}, "no methods dfiv; it has kiv, tsls"),
        ({"n": [100], "methods": ["kiv"]}, "no sweep of the plan 'mine' has all"),
    ],
)
def test_a_part_that_is_not_there(plan: Plan, wanted: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan.part(**wanted)


def test_ready_plans_are_whole() -> None:
    assert {"paper/table-1", "noisy"} <= set(ready_plans())
    for name in ready_plans():
        plan = load_plan(name)
        assert plan.name == name
        assert plan.title != name
        assert plan.specs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title = ", "cannot be read as a plan in TOML"),
        ('title = "a"', r"no \[\[sweep\]\] table"),
        ("title = 3\n" + PLAN.split("\n", 2)[2], "holds the title 3; it takes"),
        (PLAN + "\nbudget = 3", "sweep 2: .* unexpected keyword argument 'budget'"),
        (PLAN.replace("rho = [0.5]", ""), "sweep 2: .* missing 1 required .* argument: 'rho'"),
        (PLAN.replace('"kiv"', '"ols"'), "sweep 2: unknown method 'ols'"),
    ],
)
def test_a_file_that_is_no_plan_says_where(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_plan(tmp_path / "bad.toml")


def test_a_plan_that_is_nowhere_lists_the_ready_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no plan 'nowhere'.*paper/table-1.*noisy"):
        load_plan("nowhere")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read as a plan"):
        load_plan(tmp_path / "binary.toml")
