from __future__ import annotations

import pytest

from bgmiv.baselines.tsls import TSLSConfig
from bgmiv.errors import ConfigError
from bgmiv.registry import METHODS, make_config, method_label, method_names, preset_names


@pytest.mark.parametrize("method", METHODS)
def test_an_entry_says_what_its_module_has(method: str) -> None:
    entry = METHODS[method]
    assert entry.estimator_class().__name__ == entry.estimator
    assert tuple(entry.preset_configs()) == entry.presets
    for preset in preset_names():
        config = make_config(method, preset)
        assert config == make_config(method, preset)
        assert hash(config) == hash(make_config(method, preset))
        assert make_config(f"{method}-noiv", preset) == config.without_instrument() != config


def test_an_estimator_as_it_is_constructed_is_the_default_preset() -> None:
    for name, entry in METHODS.items():
        assert entry.estimator_class()()._config() == make_config(name)


def test_names_and_labels() -> None:
    assert set(method_names()) == {name for method in METHODS for name in (method, f"{method}-noiv")}
    assert len({method_label(name) for name in method_names()}) == len(method_names())


def test_closed_forms_ignore_the_preset() -> None:
    assert make_config("tsls", "paper") == make_config("tsls") == TSLSConfig()


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'deep-iv'.*bgm-iv.*tsls"):
        make_config("deep-iv")
    with pytest.raises(ConfigError, match=r"'fast'.*default.*paper"):
        make_config("bgm-iv", "fast")
