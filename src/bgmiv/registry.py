"""The registry of methods: adding a method is one file and one entry here.

The command line, the bench, the reports and the documentation read everything they need to know of a method from its
entry. Nothing is imported before it is used, so that help texts and completions are quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgmiv.errors import ConfigError, ModelFileError

if TYPE_CHECKING:
    from bgmiv.estimators.base import IVEstimator

__all__ = [
    "METHODS", "NO_INSTRUMENT", "Method", "find_method", "load", "make_config", "method_label",
    "method_names", "method_style", "nearest_preset", "preset_names",
]  # fmt: skip

NO_INSTRUMENT = "-noiv"
"""A method's name with this ending means the method with its instruments ignored."""


@dataclass(frozen=True)
class Method:
    """One method. Rows of the bench carry its version, raised by hand whenever a change gives other estimates."""

    name: str  # what the command line and the bench call it
    label: str  # what tables and figures call it
    module: str  # under `bgmiv`, where its estimator and `PRESETS` (name to a function that gives the config) are
    estimator: str  # the class that users construct
    colour: str  # in figures, one of those of Okabe and Ito
    marker: str = "o"
    presets: tuple[str, ...] = ("default", "paper")  # the keys of `PRESETS`
    versions: Mapping[str, int] = field(default_factory=dict)  # of the presets whose estimates have changed

    def version_of(self, preset: str) -> int:
        """The algorithm version of a preset."""
        return self.versions.get(preset, 1)

    def estimator_class(self) -> Any:
        """The class that users construct."""
        return getattr(import_module(f"bgmiv.{self.module}"), self.estimator)

    def preset_configs(self) -> Mapping[str, Any]:
        """Functions that give the frozen config of each preset."""
        return import_module(f"bgmiv.{self.module}").PRESETS


_BGM = ("default", "paper", "paper-qmc", "paper-qmc-no-egm", "paper-qmc-egm0")
_ONE = ("default",)
_SECOND = {"default": 2}

_ENTRIES = (
    Method("bgm-iv", "BGM-IV", "bgm.estimator", "BGMIV", "#0072B2", presets=_BGM, versions={"default": 7}),
    Method("tsls", "2SLS", "baselines.tsls", "TSLS", "#009E73", "v", _ONE),
    Method("npiv", "Sieve IV", "baselines.npiv", "NPIV", "#D55E00", ">", _ONE, {"default": 3}),
    Method(
        "control-function", "Control function", "baselines.control_function", "ControlFunction", "#882255", "<", _ONE,
        {"default": 3},
    ),
    Method("kiv", "KIV", "baselines.kiv", "KIV", "#CC79A7", "D"),
    Method("deepiv", "DeepIV", "baselines.deepiv", "DeepIV", "#56B4E9", "^", versions=_SECOND),
    Method("dfiv", "DFIV", "baselines.dfiv", "DFIV", "#E69F00", "s", versions=_SECOND),
    Method("deepgmm", "DeepGMM", "baselines.deepgmm", "DeepGMM", "#7F7F7F", "P", versions=_SECOND),
)  # fmt: skip

METHODS: dict[str, Method] = {entry.name: entry for entry in _ENTRIES}


def find_method(name: str) -> Method:
    """The entry of a method, also by the name of its no-instrument version; an unknown name is a `ConfigError`."""
    method = METHODS.get(name.removesuffix(NO_INSTRUMENT))
    if method is None:
        raise ConfigError(f"unknown method '{name}'; known methods: {', '.join(method_names())}.")
    return method


def load(folder: str | Path) -> IVEstimator:
    """Open a saved fit of any method.

    Args:
        folder: what `save` has written, by whomever.

    Returns:
        The fitted estimator. It answers questions, and shows the analysis it was saved with; with rows
        (`attach_data`) it can be diagnosed and analysed anew.

    Raises:
        ModelFileError: the folder holds no saved model, a damaged one, or one of another version of the format.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from bgmiv import TSLS
        >>> w, u, e = np.random.default_rng(0).normal(size=(3, 200))
        >>> model = TSLS().fit(2 * w + u + e, w + u, instruments=w)
        >>> with tempfile.TemporaryDirectory() as place:
        ...     model.save(Path(place) / "fit")
        ...     again = load(Path(place) / "fit")
        >>> bool(again.predict(1.0)[0] == model.predict(1.0)[0])
        True
    """
    from bgmiv.persist.folder import read_model

    files = read_model(Path(folder))
    for entry in METHODS.values():
        if entry.estimator == files.method:
            return entry.estimator_class()._opened(Path(folder), files)
    raise ModelFileError(f"{folder} holds a model of an unknown method, {files.method[:40]!r}.")


def method_names() -> tuple[str, ...]:
    """All methods, each followed by its no-instrument version."""
    return tuple(name for method in METHODS for name in (method, method + NO_INSTRUMENT))


def method_label(name: str) -> str:
    """What tables and figures call a method; an unknown name stays as it is.

    Example:
        >>> method_label("tsls"), method_label("kiv-noiv"), method_label("other")
        ('2SLS', 'KIV without the instrument', 'other')
    """
    entry = METHODS.get(name.removesuffix(NO_INSTRUMENT))
    if entry is None:
        return name
    return f"{entry.label} without the instrument" if name.endswith(NO_INSTRUMENT) else entry.label


def method_style(name: str) -> tuple[str, str]:
    """The colour and the marker of a method in figures; its no-instrument version has a cross."""
    entry = METHODS.get(name.removesuffix(NO_INSTRUMENT))
    if entry is None:
        return "#000000", "o"
    return entry.colour, "X" if name.endswith(NO_INSTRUMENT) else entry.marker


def preset_names() -> tuple[str, ...]:
    """All presets of any method."""
    return tuple(dict.fromkeys(preset for method in METHODS.values() for preset in method.presets))


def nearest_preset(method: str, preset: str) -> str:
    """The preset itself if the method has it, else the nearest one it has.

    `paper-qmc` is `paper` for every method but BGM-IV, and methods in closed form may have only `default`.

    Example:
        >>> nearest_preset("kiv", "paper-qmc"), nearest_preset("tsls", "paper")
        ('paper', 'default')
    """
    presets = find_method(method).presets
    if preset not in preset_names():
        raise ConfigError(f"unknown preset '{preset}'; known presets: {', '.join(preset_names())}.")
    return next(known for known in (preset, preset.split("-")[0], "default") if known in presets)


def make_config(method: str, preset: str = "default") -> Any:
    """The method's frozen config under a preset, or under the nearest one it has (:func:`nearest_preset`).

    Example:
        >>> make_config("bgm-iv", "paper").alternating.epochs
        201
    """
    config = find_method(method).preset_configs()[nearest_preset(method, preset)]()
    return config.without_instrument() if method.endswith(NO_INSTRUMENT) else config
