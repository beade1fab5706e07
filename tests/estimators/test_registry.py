from __future__ import annotations

import pytest

from bgmiv.errors import ConfigError
from bgmiv.estimators.bgmiv import PRESETS, BGMIVConfig
from bgmiv.estimators.registry import METHODS, make_estimator, method_names, preset_names
from bgmiv.estimators.tsls import TSLSConfig
from bgmiv.integrate import ObservedTreatment


def test_names() -> None:
    assert {"bgm-iv", "bgm-iv-noiv", "tsls"} <= set(method_names())
    assert set(method_names()) == {name for method in METHODS for name in (method, f"{method}-noiv")}
    assert {"default", "paper"} <= set(preset_names())
    assert set(PRESETS) <= set(preset_names())


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("method", method_names())
def test_every_method_has_every_preset(method: str, preset: str) -> None:
    config = make_estimator(method, preset)
    assert callable(config.fit)
    assert config == make_estimator(method, preset)
    assert hash(config) == hash(make_estimator(method, preset))


@pytest.mark.parametrize("preset", preset_names())
def test_the_twin_differs_only_in_the_instrument(preset: str) -> None:
    from dataclasses import replace

    config, twin = make_estimator("bgm-iv", preset), make_estimator("bgm-iv-noiv", preset)
    assert isinstance(config, BGMIVConfig)
    assert isinstance(twin, BGMIVConfig)
    assert (config.use_instrument, twin.use_instrument) == (True, False)
    assert twin.warm_start.integration == twin.alternating.integration == ObservedTreatment()
    undone = replace(
        twin,
        use_instrument=True,
        warm_start=replace(twin.warm_start, integration=config.warm_start.integration),
        alternating=replace(twin.alternating, integration=config.alternating.integration),
    )
    assert undone == config


def test_closed_forms_ignore_the_preset() -> None:
    assert make_estimator("tsls", "paper") == make_estimator("tsls") == TSLSConfig()


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'deep-iv'.*bgm-iv.*tsls"):
        make_estimator("deep-iv")
    with pytest.raises(ConfigError, match=r"'fast'.*default.*paper"):
        make_estimator("bgm-iv", "fast")
