"""Methods by name: one line adds one."""

from __future__ import annotations

from collections.abc import Callable

from bgmiv.errors import ConfigError
from bgmiv.estimators.base import Estimator
from bgmiv.estimators.bgmiv import PRESETS, without_instrument
from bgmiv.estimators.tsls import TSLSConfig

__all__ = ["METHODS", "make_estimator", "method_names", "preset_names"]

METHODS: dict[str, Callable[[str], Estimator]] = {
    "bgm-iv": lambda preset: PRESETS[preset](),
    "bgm-iv-noiv": lambda preset: without_instrument(PRESETS[preset]()),
    "tsls": lambda preset: TSLSConfig(),
}


def method_names() -> tuple[str, ...]:
    """All registered methods.

    Example:
        >>> "bgm-iv" in method_names()
        True
    """
    return tuple(METHODS)


def preset_names() -> tuple[str, ...]:
    """All presets."""
    return tuple(PRESETS)


def make_estimator(method: str, preset: str = "default") -> Estimator:
    """The method's frozen config under a preset (closed-form methods have only one).

    Example:
        >>> make_estimator("bgm-iv", "paper").alternating.epochs
        201
    """
    if method not in METHODS:
        raise ConfigError(f"unknown method '{method}'; known methods: {', '.join(METHODS)}.")
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset '{preset}'; known presets: {', '.join(PRESETS)}.")
    return METHODS[method](preset)
