"""Saved models: every method round-trips, and folders that anyone may have written are refused with a clear error."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

import bgmiv
from bgmiv.errors import DataError, ModelFileError
from bgmiv.estimators.base import IVEstimator

from .conftest import PROBLEMS


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    w, age, u, income = rng.normal(size=(4, 120))
    x = w + age + u
    region = rng.choice(["north", "south", "west"], 120, p=[0.5, 0.3, 0.2])
    return {"y": 2.0 * x + age - u, "x": x, "w": w, "age": age, "income": income, "region": region}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, table: dict[str, Any]) -> Path:
    """A saved 2SLS fit by formula, with its analysis."""
    model = bgmiv.TSLS().fit_formula("y ~ age + C(region) + center(income) + [x ~ w]", table)
    model.analysis()
    path: Path = tmp_path_factory.mktemp("saved") / "model"
    model.save(path)
    return path


def check_saved(model: IVEstimator, treatment: float, covariates: Any, place: Path) -> None:
    """A saved model says what it said before, to the last bit."""
    verdict = model.verdict_
    model.save(place)
    again = bgmiv.load(place)
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    assert again.seed_ == model.seed_
    for name in ("predict", "in_support"):
        one, two = (getattr(each, name)(treatment, covariates) for each in (model, again))
        np.testing.assert_array_equal(one, two)
    one, two = (each.ate(covariates, t0=0.0, t1=1.0) for each in (model, again))
    assert one == two
    if model.fitted_.interval_kind:
        # The robust set of weak instruments needs the rows of the fit.
        one, two = (each.ate_interval(covariates, t0=0.0, t1=1.0, method="usual") for each in (model, again))
        assert (one.lower, one.upper) == (two.lower, two.upper)
    assert again.verdict_ == verdict


@pytest.mark.filterwarnings("ignore::bgmiv.errors.SupportWarning")
def test_every_method_predicts_bit_equally_after_loading(
    method: str, fitted: Callable[..., IVEstimator], tmp_path: Path
) -> None:
    problem = "two instruments, vector and category"
    model = fitted(method, problem)
    check_saved(model, 0.3, PROBLEMS[problem].covariates, tmp_path / "model")


def test_a_fit_to_a_table_takes_tables_after_loading(table: dict[str, Any], tmp_path: Path) -> None:
    roles = {"outcome": "y", "treatment": "x", "instruments": "w", "covariates": ["age", "region", "income"]}
    model = bgmiv.TSLS().fit_table(table, **roles)
    check_saved(model, 0.3, table, tmp_path / "model")
    assert bgmiv.load(tmp_path / "model").ate(table, t0=0.0, t1=1.0) == model.ate(t0=0.0, t1=1.0)


def test_a_loaded_model_shows_its_analysis_and_takes_rows_again(folder: Path, table: dict[str, Any]) -> None:
    model = bgmiv.load(folder)
    shown = model.analysis()
    assert model.diagnose() == shown.diagnosis
    with pytest.raises(DataError, match="attach_data"):
        model.analysis(level=0.9)
    model.attach_data(table)
    assert model.analysis().effects == shown.effects
    assert model.analysis(level=0.9).effects[0].upper < shown.effects[0].upper


def test_a_loaded_model_gives_no_intervals_of_another_level(table: dict[str, Any], tmp_path: Path) -> None:
    model = bgmiv.TSLS().fit(table["y"], table["x"], instruments=table["w"])
    model.save(tmp_path / "model", analysis=model.analysis(level=0.9))
    again = bgmiv.load(tmp_path / "model")
    assert again.summary().level == again.summary(level=0.9).level == 0.9
    assert again.diagnose() == again.diagnose(level=0.9) == model.diagnose(level=0.9)
    # What is asked for is not the saved one, even where it is the default.
    for ask in (again.summary, again.diagnose):
        with pytest.raises(DataError, match="attach_data"):
            ask(level=0.95)
    with pytest.raises(DataError, match="attach_data"):
        again.diagnose(no_instrument=False)


def test_rows_of_another_table_are_refused(folder: Path, table: dict[str, Any]) -> None:
    other = {**table, "region": np.where(table["age"] > 0, "n", "s")}
    with pytest.raises(DataError, match="levels of the fit"):
        bgmiv.load(folder).attach_data(other)


def test_other_settings_are_not_saved(table: dict[str, Any], tmp_path: Path) -> None:
    class Mine:
        def fit(self, values: np.ndarray) -> Any:
            return bgmiv.Identity().fit(values)

    model = bgmiv.KIV(scaling=bgmiv.RoleScaling(outcome=Mine()), random_state=0)
    model.fit(table["y"], table["x"], instruments=table["w"])
    with pytest.raises(ModelFileError, match="Mine"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_only_saved_models_are_replaced(folder: Path, table: dict[str, Any], tmp_path: Path) -> None:
    model = bgmiv.TSLS(covariance="robust").fit(table["y"], table["x"], instruments=table["w"])
    target = tmp_path / "model"
    shutil.copytree(folder, target)
    with pytest.raises(ModelFileError, match="overwrite=True"):
        model.save(target)
    model.save(target, overwrite=True)
    assert bgmiv.load(target).covariance == "robust"
    (target / "notes.txt").write_text("mine")
    with pytest.raises(ModelFileError, match="other files"):
        model.save(target, overwrite=True)
    assert (target / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["a" * 300, "/".join(["b" * 200] * 30), "a\0b/c", ""])
def test_names_that_no_folder_has(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        bgmiv.load(tmp_path / name)


def test_loading_by_the_wrong_class(folder: Path) -> None:
    with pytest.raises(ModelFileError):
        bgmiv.KIV.load(folder)


Change = Callable[[Path], object]


def in_json(change: Callable[[dict[str, Any]], object]) -> Change:
    """A change of the document, with the right checksum."""

    def apply(folder: Path) -> None:
        document = json.loads((folder / "model.json").read_text())
        change(document)
        del document["sha256"]
        digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
        (folder / "model.json").write_text(json.dumps({**document, "sha256": digest}))

    return apply


def in_arrays(change: Callable[[dict[str, np.ndarray]], object]) -> Change:
    """A change of the arrays, with the right checksum."""

    def apply(folder: Path) -> None:
        arrays = load_arrays((folder / "arrays.safetensors").read_bytes())
        change(arrays)
        data = save_arrays(arrays)
        (folder / "arrays.safetensors").write_bytes(data)
        digest = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        in_json(lambda document: document.update(arrays=digest))(folder)

    return apply


def text(content: str) -> Change:
    return lambda folder: (folder / "model.json").write_text(content)


def link(name: str) -> Change:
    def apply(folder: Path) -> None:
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)

    return apply


def in_fitted(change: Callable[[dict[str, Any]], object]) -> Change:
    return in_json(lambda document: change(document["model"]["fitted"]))


def first_array(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    name = "model.fitted.coefficients"
    return in_arrays(lambda arrays: arrays.update({name: change(arrays[name])}))


HOSTILE: dict[str, tuple[Change, str]] = {
    "no document": (lambda f: (f / "model.json").unlink(), "does not exist"),
    "no arrays": (lambda f: (f / "arrays.safetensors").unlink(), "does not exist"),
    "empty document": (text(""), "no usable JSON"),
    "not JSON": (text("{'format'"), "no usable JSON"),
    "a list": (text("[1]"), "format"),
    "a changed number": (
        lambda f: (f / "model.json").write_text((f / "model.json").read_text().replace('"seed": 0', '"seed": 1')),
        "checksum",
    ),
    "deep nesting": (text("[" * 100_000), "no usable JSON"),
    "NaN": (text('{"format": NaN}'), "format"),
    "another format": (in_json(lambda d: d.update(format="pickle")), "format"),
    "a newer version": (in_json(lambda d: d.update(version=99)), "Upgrade"),
    "an older version": (in_json(lambda d: d.update(version=1)), "Fit the model again"),
    "an extra key": (in_json(lambda d: d.update(code="import os")), "nothing else"),
    "an unknown method": (in_json(lambda d: d.update(method="Popen")), "unknown method"),
    "a class from elsewhere": (in_fitted(lambda d: d.update({"is": "subprocess.Popen"})), "must be a FittedMethod"),
    "an estimator in place of a fit": (
        in_json(lambda d: d["model"].update(fitted=d["model"]["estimator"])),
        "FittedMethod",
    ),
    "an unknown field": (in_fitted(lambda d: d.update(__reduce__="x")), "must have the fields .*, nothing else"),
    "a missing field": (in_fitted(lambda d: d.pop("intercept")), "must have the fields .*intercept"),
    "a text for a number": (in_fitted(lambda d: d.update(intercept="0; import os")), "must be a number"),
    "settings that no fit takes": (in_json(lambda d: d["model"]["estimator"].update(covariance="none")), "covariance"),
    "a huge block": (in_fitted(lambda d: d["schema"]["blocks"][0].update(stop=10**12)), "schema"),
    "overlapping blocks": (in_fitted(lambda d: d["schema"]["blocks"][-1].update(start=0)), "schema"),
    "levels twice": (in_fitted(lambda d: d["schema"]["blocks"][1].update(levels=["n", "n"])), "schema"),
    "a flipped bit": (
        lambda f: (f / "arrays.safetensors").write_bytes((f / "arrays.safetensors").read_bytes()[:-1] + b"\x01"),
        "damaged",
    ),
    "truncated arrays": (
        lambda f: (f / "arrays.safetensors").write_bytes((f / "arrays.safetensors").read_bytes()[:-8]),
        "damaged",
    ),
    "a size that lies": (in_json(lambda d: d["arrays"].update(bytes=10**15)), "is damaged, truncated"),
    "a negative size": (in_json(lambda d: d["arrays"].update(bytes=-1)), "is damaged, truncated"),
    "another shape": (first_array(lambda a: np.append(a, 1.0)), "do not fit together"),
    "infinite weights": (first_array(lambda a: np.full_like(a, np.inf)), "finite"),
    "texts as arrays": (first_array(lambda a: a.astype(np.uint8)), "finite"),
    "a missing array": (in_arrays(lambda arrays: arrays.pop("model.fitted.coefficients")), "must be an array"),
    "a formula that calls": (
        in_json(lambda d: d["model"]["reader"]["terms"][2][0].__setitem__(0, "__import__('os').system('true')")),
        "formula is refused.* calls __import__",
    ),
    "a formula without end": (
        in_json(lambda d: d["model"]["reader"]["terms"][2][0].__setitem__(0, "bs(income, df=100000000)")),
        "formula is refused.* has a setting below 1 or above 100",
    ),
    "a linked document": (link("model.json"), "never followed"),
    "linked arrays": (link("arrays.safetensors"), "never followed"),
    "a pipe": (lambda f: ((f / "model.json").unlink(), os.mkfifo(f / "model.json")), "not a plain file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    change, message = HOSTILE[name]
    target = tmp_path / "model"
    shutil.copytree(folder, target)
    change(target)
    with pytest.raises(ModelFileError, match=message):
        bgmiv.load(target)
