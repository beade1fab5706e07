"""A saved model takes the tables that it was fitted on; one with a made-up formula is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bgmiv import BGMIV, ModelFileError
from bgmiv.covariates import CovariateConfig
from bgmiv.data.formulas import from_formula
from bgmiv.data.frames import ColumnReader, from_frame
from bgmiv.data.ivdata import IVData
from bgmiv.errors import BGMIVWarning
from bgmiv.estimators.bgmiv import BGMIVConfig
from bgmiv.infer import LatentMap
from bgmiv.model import LatentLayout, ModelConfig
from bgmiv.train import Alternating, DirectStart

N = 60
RNG = np.random.default_rng(0)
TABLE: dict[str, Any] = {
    **{name: RNG.normal(size=N) for name in ("wage", "educ", "near")},
    "age": RNG.normal(size=N) + 6.0,
    "region": np.array(["north", "south", "west"] * 20),
}
LATER = {"age": [5.5, 6.5, 6.1], "region": ["west", "north", "south"], "more": [1, 2, 3]}
FORMULA = "wage ~ np.log(age) + poly(age, 2) + bs(age, df=4) + scale(age):region + C(region) + [educ ~ near]"


def untrained(data: IVData, reader: Any) -> BGMIV:
    config = BGMIVConfig(
        layout=LatentLayout(1, 1, 1, 1),
        model=ModelConfig(treatment_hidden=(3,), outcome_hidden=(3,), covariates=CovariateConfig(dense_hidden=(3,))),
        warm_start=DirectStart(iterations=0),
        alternating=Alternating(epochs=0),
        latent_map=LatentMap(steps=0),
    )
    model = BGMIV(random_state=0)
    model.fitted_, model.seed_, model.reader_ = config.fit(data, jax.random.key(0)), 0, reader
    model.data_ = data
    return model


@pytest.fixture(scope="module")
def model() -> BGMIV:
    return untrained(*from_formula(FORMULA, TABLE))


@pytest.fixture(scope="module")
def good(model: BGMIV, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "model"
    model.save(folder)
    return folder


def test_it_predicts_from_the_same_tables_to_the_last_bit(model: BGMIV, good: Path, tmp_path: Path) -> None:
    again = BGMIV.load(good)
    np.testing.assert_array_equal(again.predict(12.0, LATER), model.predict(12.0, LATER))
    again.save(tmp_path / "again")
    np.testing.assert_array_equal(BGMIV.load(tmp_path / "again").predict(12.0, LATER), model.predict(12.0, LATER))


def test_the_columns_of_a_table(tmp_path: Path) -> None:
    data = from_frame(TABLE, outcome="wage", treatment="educ", instruments="near", covariates=["age", "region"])
    model = untrained(data, ColumnReader(("age", "region")))
    model.save(tmp_path / "model")
    again = BGMIV.load(tmp_path / "model")
    assert again.reader_ == ColumnReader(("age", "region"))
    np.testing.assert_array_equal(again.predict(12.0, LATER), model.predict(12.0, LATER))


def test_what_cannot_be_kept_is_said(tmp_path: Path) -> None:
    model = untrained(*from_formula("wage ~ bs(age, df=4, lower_bound=2, upper_bound=10) + [educ ~ near]", TABLE))
    with pytest.warns(BGMIVWarning, match=r"terms are not saved: .*'bs\(age, df=4, lower_bound=2.*\)\[1\]'"):
        model.save(tmp_path / "model")
    assert BGMIV.load(tmp_path / "model").reader_ is None


def edit(folder: Path, turn: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((folder / "model.json").read_text())
    turn(document)
    (folder / "model.json").write_text(json.dumps(document))


def test_files_without_a_reader(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    edit(folder, lambda document: document["model"].update(reader=None))
    assert BGMIV.load(folder).reader_ is None
    edit(folder, lambda document: document["model"].pop("reader"))
    with pytest.raises(ModelFileError, match="lacks reader"):
        BGMIV.load(folder)


def factor(text: str, is_column: bool = False) -> dict[str, Any]:
    return {"is": "factor", "text": text, "is_column": is_column}


ATTACKS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a call": (lambda r: r["terms"].append([factor("__import__('os').system('touch exploded')")]), "reader is refused"),
    "a call inside": (lambda r: r["terms"][0][0].update(text="np.log(open('exploded', 'w'))"), "calls open"),
    "another term": (lambda r: r["terms"][0][0].update(text="np.exp(age)"), "other covariates"),
    "a term more": (lambda r: r["terms"].append([factor("np.exp(age)")]), "other covariates|not those"),
    "a term less": (lambda r: r["terms"].pop(0), "other covariates|not those"),
    "the text of a formula": (lambda r: r.update(terms="np.log(age)"), "must be a list"),
    "levels of another": (lambda r: r["levels"][0].update(levels=["a", "b"]), "other covariates"),
    "levels of lists": (lambda r: r["levels"][0].update(levels=[["a"]]), "levels"),
    "state of text": (lambda r: r["state"][0].update(numbers=["1"]), "must be a number"),
    "state without end": (lambda r: r["state"][0].update(numbers=[0.0] * 10**4), "10000 numbers"),
    "state of NaN": (lambda r: r["state"][0].update(numbers=[{"is": "float", "value": "nan"}]), "must be a number"),
    "infinite state": (lambda r: r["state"][0].update(numbers=[{"is": "float", "value": "inf"}]), "refused|finite"),
    "state of objects": (lambda r: r["state"][0].update(path=[{"is": "os.system"}]), "path"),
    "state of no transform": (lambda r: r["state"].pop(0), "not that of its transforms"),
    "a huge setting": (lambda r: r["terms"].append([factor("bs(age, df=100000000)")]), "setting above 1000"),
    "columns for a formula": (lambda r: (r.clear(), r.update({"is": "columns", "names": ["age"]})), "other covariates"),
    "a key more": (lambda r: r.update(code="print"), "unknown 'code'"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_formula_that_nobody_typed_is_refused(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    turn, message = ATTACKS[attack]
    edit(folder, lambda document: turn(document["model"]["reader"]))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFileError, match=message):
        BGMIV.load(folder)
    assert not (tmp_path / "exploded").exists()
