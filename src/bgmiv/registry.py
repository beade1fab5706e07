"""The registry of methods: adding a method is one file and one entry here.

The command line, the bench, the reports and the documentation read everything they need to know of a method from its
entry. Nothing is imported before it is used, so that help texts and completions are quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bgmiv.errors import ConfigError, ModelFileError

if TYPE_CHECKING:
    from bgmiv.estimators.base import IVEstimator

__all__ = [
    "METHODS", "NO_INSTRUMENT", "Method", "PlotStyle", "find_method", "load", "make_config", "method_label",
    "method_names", "method_style", "nearest_preset", "preset_names",
]  # fmt: skip

NO_INSTRUMENT = "-noiv"
"""A method's name with this ending means the method with its instruments ignored."""


class PlotStyle(NamedTuple):
    """How a method is drawn: told apart by colour (those of Okabe and Ito), by dashes and by marker."""

    colour: str
    dashes: Any = "-"
    width: float = 1.8
    marker: str = "o"


@dataclass(frozen=True)
class Method:
    """One method. Rows of the bench carry its version, raised by hand whenever a change gives other estimates."""

    name: str  # what the command line and the bench call it
    label: str  # what tables and figures call it
    module: str  # under `bgmiv`, where its estimator and `PRESETS` (name to a function that gives the config) are
    estimator: str  # the class that users construct
    style: PlotStyle  # how it is drawn
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
    Method(
        "bgm-iv", "BGM-IV", "bgm.estimator", "BGMIV", PlotStyle("#0072B2", width=2.2), _BGM,
        {"default": 7},
    ),
    Method("tsls", "2SLS", "baselines.tsls", "TSLS", PlotStyle("#009E73", ":", marker="v"), _ONE),
    Method(
        "npiv", "Sieve IV", "baselines.npiv", "NPIV", PlotStyle("#D55E00", (0, (6, 2, 1, 2)), marker=">"),
        _ONE, {"default": 3},
    ),
    Method(
        "control-function", "Control function", "baselines.control_function", "ControlFunction",
        PlotStyle("#882255", (0, (5, 1, 1, 1)), marker="<"), _ONE, {"default": 3},
    ),
    Method("kiv", "KIV", "baselines.kiv", "KIV", PlotStyle("#CC79A7", (0, (3, 1, 1, 1)), marker="D")),
    Method(
        "deepiv", "DeepIV", "baselines.deepiv", "DeepIV", PlotStyle("#56B4E9", (0, (7, 1)), marker="^"),
        versions=_SECOND,
    ),
    Method(
        "dfiv", "DFIV", "baselines.dfiv", "DFIV", PlotStyle("#E69F00", (0, (8, 2, 2, 2)), marker="s"),
        versions=_SECOND,
    ),
    Method(
        "deepgmm", "DeepGMM", "baselines.deepgmm", "DeepGMM",
        PlotStyle("#7F7F7F", (0, (4, 1, 1, 1, 1, 1)), marker="P"), versions=_SECOND,
    ),
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
            found: IVEstimator = entry.estimator_class()._opened(Path(folder), files)
            return found
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


def method_style(name: str) -> PlotStyle:
    """How a method is drawn; its no-instrument version has its colour, finer dashes and a cross."""
    entry = METHODS.get(name.removesuffix(NO_INSTRUMENT))
    if entry is None:
        return PlotStyle("#000000")
    return entry.style._replace(dashes=(0, (2, 2)), marker="X") if name.endswith(NO_INSTRUMENT) else entry.style


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
