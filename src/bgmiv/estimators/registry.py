"""Methods by name: one line adds one, with its no-IV twin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bgmiv.errors import ConfigError
from bgmiv.estimators import bgmiv, deepgmm, deepiv, dfiv, kiv, tsls
from bgmiv.estimators.base import Estimator

__all__ = ["METHODS", "make_estimator", "method_names", "nearest_preset", "preset_names"]

METHODS: dict[str, Mapping[str, Callable[[], Any]]] = {
    "bgm-iv": bgmiv.PRESETS,
    "tsls": {"default": tsls.TSLSConfig},
    "kiv": kiv.PRESETS,
    "deepiv": deepiv.PRESETS,
    "dfiv": dfiv.PRESETS,
    "deepgmm": deepgmm.PRESETS,
}
"""Each method's presets; `<name>-noiv` is the method with its instrument ignored."""

_TWIN = "-noiv"


def method_names() -> tuple[str, ...]:
    """All methods, each followed by its twin.

    Example:
        >>> method_names()[:2]
        ('bgm-iv', 'bgm-iv-noiv')
    """
    return tuple(name for method in METHODS for name in (method, method + _TWIN))


def preset_names() -> tuple[str, ...]:
    """All presets of any method."""
    return tuple(dict.fromkeys(preset for presets in METHODS.values() for preset in presets))


def nearest_preset(method: str, preset: str) -> str:
    """The preset itself if the method has it, else the nearest one it has.

    `paper-qmc` is `paper` for every method but BGM-IV, and methods in closed form may have only `default`.

    Example:
        >>> nearest_preset("kiv", "paper-qmc"), nearest_preset("tsls", "paper")
        ('paper', 'default')
    """
    presets = METHODS[_known_method(method)]
    if preset not in preset_names():
        raise ConfigError(f"unknown preset '{preset}'; known presets: {', '.join(preset_names())}.")
    return next(known for known in (preset, preset.split("-")[0], "default") if known in presets)


def make_estimator(method: str, preset: str = "default") -> Estimator:
    """The method's frozen config under a preset, or under the nearest one it has (:func:`nearest_preset`).

    Example:
        >>> make_estimator("bgm-iv", "paper").alternating.epochs
        201
    """
    name = _known_method(method)
    config = METHODS[name][nearest_preset(method, preset)]()
    if name == method:
        return config
    return bgmiv.without_instrument(config) if name == "bgm-iv" else replace(config, use_instrument=False)


def _known_method(method: str) -> str:
    name = method.removesuffix(_TWIN)
    if name not in METHODS:
        raise ConfigError(f"unknown method '{method}'; known methods: {', '.join(method_names())}.")
    return name
