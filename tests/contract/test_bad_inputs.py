"""Bad inputs against every method: none is silent, and each error names its cause.

What a file can hold is in `bad_files`: a CSV file and a row of `cases.json` each, so that the command line is held to
the same table. What only Python can hold is here. All that an error says is checked in tests/data/test_bad_inputs.py.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from typer.testing import CliRunner

from bgmiv import BGMIV, DFIV, KIV, TSLS, DeepGMM, DeepIV
from bgmiv.cli.main import app
from bgmiv.data.frames import read_table_file
from bgmiv.errors import BGMIVWarning, ConfigError, DataError
from bgmiv.estimators.base import IVEstimator

FILES = Path(__file__).parent / "bad_files"
FILE_CASES = json.loads((FILES / "cases.json").read_text())

METHODS: dict[str, Callable[..., IVEstimator]] = {
    "TSLS": TSLS,
    "KIV": KIV,
    "DeepIV": lambda **more: DeepIV(epochs=2, hidden=(8,), **more),
    "DFIV": lambda **more: DFIV(epochs=1, **more),
    "DeepGMM": lambda **more: DeepGMM(updates=3, hidden=(8,), learning_rates=(1e-3,), **more),
    "BGMIV": lambda **more: BGMIV(warm_start_iterations=20, members=1, held_out=0.0, **more),
}

COMMANDS = {
    "TSLS": "tsls",
    "KIV": "kiv",
    "DeepIV": "deepiv",
    "DFIV": "dfiv",
    "DeepGMM": "deepgmm",
    "BGMIV": "bgm-iv",
}

N = 30
RNG = np.random.default_rng(0)
W, V, U = RNG.normal(size=(3, N))
X = W + V + U
Y = 2.0 * X + V - U
REGION = np.where(np.arange(N) % 3, "north", "south")


def put(values: np.ndarray, row: int, value: Any, dtype: Any = None) -> np.ndarray:
    changed = np.array(values, dtype=dtype)
    changed[row] = value
    return changed


def table(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"age": V, "region": pd.Categorical(REGION), **columns})


# Changes of `fit(outcome, treatment, instruments=..., covariates=...)`, and what the message must match.
FIT: dict[str, tuple[dict[str, Any], str]] = {
    "NaN": ({"outcome": put(Y, 2, np.nan)}, r"outcome has 1 missing value \(row 2\)"),
    "None": ({"treatment": [*X[:-1], None]}, r"treatment has 1 missing value \(row 29\)"),
    "NaT": ({"treatment": pd.Series(pd.to_datetime([None] * N))}, "treatment holds dates"),
    "pandas NA": (
        {"treatment": pd.Series(put(np.arange(N), 4, pd.NA, object), dtype="Int64")},
        "treatment has 1 missing",
    ),
    "polars null": ({"instruments": pl.DataFrame({"cost": [None, *W[1:]]})}, "'cost' has 1 missing"),
    "arrow null": ({"outcome": pa.array([None, *Y[1:].tolist()])}, "outcome has 1 missing"),
    "masked": ({"outcome": np.ma.masked_greater(Y, 0.0)}, "outcome has .* masked row"),
    "masked covariate": ({"covariates": {"age": np.ma.masked_greater(V, 0.0)}}, "'age' has .* masked row"),
    "infinity": ({"treatment": put(X, 0, np.inf)}, r"treatment has 1 infinite value \(row 0\)"),
    "minus infinity in covariates": ({"covariates": table(age=put(V, 1, -np.inf))}, "'age' has 1 infinite value"),
    "missing level": ({"covariates": table(region=put(REGION, 0, None, object))}, "'region'.*(missing|strings)"),
    "all missing": ({"outcome": np.full(N, np.nan)}, "outcome has 30 missing values"),
    "1e300": ({"outcome": Y * 1e300}, r"outcome has 30 values .* beyond 3\.4e\+38"),
    "1e300 in an instrument": ({"instruments": {"cost": put(W, 3, 1e300)}}, "'cost' has 1 value .* beyond"),
    "1e-300": ({"treatment": X * 1e-300}, "treatment varies by .* vanish in single precision"),
    "1e-300 in an instrument": ({"instruments": {"cost": W * 1e-300}}, "'cost' varies by .* vanish"),
    "constant outcome": ({"outcome": np.ones(N)}, "outcome is constant, 1 in every row"),
    "constant treatment": ({"treatment": np.ones(N)}, "treatment is constant, 1 in every row"),
    "constant instrument": ({"instruments": np.column_stack([W, np.ones(N)])}, "'instrument_1' is constant"),
    "constant covariate": ({"covariates": np.column_stack([V, np.ones(N)])}, "'covariate_1' is constant"),
    "short treatment": ({"treatment": X[:-1]}, "treatment has 29 rows but outcome has 30"),
    "long instruments": ({"instruments": np.append(W, 0.0)}, "instruments have 31 rows but outcome has 30"),
    "short covariates": ({"covariates": table().iloc[1:]}, "covariates have 29 rows but outcome has 30"),
    "transposed covariates": ({"covariates": np.stack([V, U])}, "covariates have 2 rows but .* transposed"),
    "other index": (
        {"outcome": pd.Series(Y), "covariates": table().iloc[::-1]},
        "covariates and outcome have different pandas indexes",
    ),
    "treatment as instrument": ({"instruments": X}, "'instrument_0' is identical to treatment"),
    "outcome as treatment": ({"treatment": Y}, "treatment is identical to outcome"),
    "treatment as covariate": ({"covariates": table(price=X)}, "treatment is identical to covariates column 'price'"),
    "instrument as covariate": ({"covariates": table(cost=W)}, "'instrument_0' is identical to .*'cost'"),
    "one name in two roles": (
        {"treatment": pd.Series(X, name="age"), "covariates": table()},
        "'age' is given both as treatment and among the covariates",
    ),
    "duplicated names": (
        {"covariates": pd.DataFrame(np.column_stack([V, U]), columns=["age", "age"])},
        "duplicated column names, age",
    ),
    "objects": ({"treatment": [Decimal(i) for i in range(N)]}, "treatment has object dtype .*Decimal"),
    "lists in cells": ({"treatment": pd.Series([[1.0]] * N)}, "treatment has object dtype .*list|nested"),
    "complex": ({"outcome": Y + 1j}, "outcome holds complex numbers"),
    "dates": ({"treatment": pd.Series(pd.date_range("2020", periods=N))}, "treatment holds dates"),
    "times": ({"treatment": [dt.time(i % 24) for i in range(N)]}, "treatment has object dtype .*time"),
    "time differences": ({"outcome": np.arange(N).astype("timedelta64[s]")}, "outcome holds time differences"),
    "words": ({"instruments": {"place": REGION}}, "'place' holds strings"),
    "undeclared words": ({"covariates": {"place": REGION}}, "'place' holds strings.*blocks="),
    "identifiers": ({"treatment": [f"person {i}" for i in range(N)]}, "treatment holds strings, 30 different ones"),
    "numbers as words": ({"treatment": [str(i % 4) for i in range(N)]}, "treatment holds strings that are numbers"),
    "bytes": ({"covariates": {"place": np.array([b"a", b"b"] * 15)}}, "'place' holds strings"),
    "structured": ({"outcome": np.zeros(N, dtype=[("a", float)])}, "outcome has dtype .* not numeric"),
    "sparse": ({"covariates": scipy.sparse.csr_matrix(V[:, None])}, "covariates is a sparse matrix"),
    "sparse instruments": ({"instruments": scipy.sparse.csr_array(W[:, None])}, "instruments is a sparse matrix"),
    "ragged": ({"covariates": [[1.0], [1.0, 2.0]] * 15}, "covariates has rows of different lengths"),
    "three dimensions": ({"covariates": np.zeros((N, 2, 2))}, "covariates have 3 dimensions"),
    "two outcomes": ({"outcome": np.column_stack([Y, U])}, r"outcome must be one column, got shape \(30, 2\)"),
    "two treatments": ({"treatment": table(a=X)[["age", "a"]]}, "treatment must be one column"),
    "empty": ({"outcome": []}, "outcome: empty, there are no rows"),
    "all empty": ({"outcome": [], "treatment": [], "instruments": []}, "empty, there are no rows"),
    "one row": ({"outcome": [1.0], "treatment": [2.0], "instruments": [3.0]}, "outcome has one row"),
    "no instruments": ({"instruments": None}, "instruments are missing"),
    "instruments without columns": ({"instruments": {}}, "instruments are missing"),
    "scalar": ({"treatment": 3.0}, "treatment must be an array or a table, got float"),
    "generator": ({"treatment": (x for x in X)}, "treatment must be an array or a table, got generator"),
    "set": ({"outcome": {1.0, 2.0}}, "outcome must be an array or a table, got set"),
    "text": ({"outcome": "wage"}, "outcome must be an array or a table, got str"),
    "lazy table": ({"covariates": pl.LazyFrame({"age": V})}, "LazyFrame.*collect"),
    "mapping of scalars": ({"covariates": {"age": 3.0}}, "'age' has 0 dimensions"),
    "mapping of tables": ({"covariates": {"all": table()}}, "'all' is a table"),
    "mapping of two lengths": ({"covariates": {"age": V, "u": U[:3]}}, "'u' has 3 rows but .*'age'"),
    "mapping to nothing": ({"covariates": {"age": None}}, "'age' has 0 dimensions|'age'.*None"),
    "unknown block": ({"covariates": {"age": V}, "blocks": {"regoin": "categorical"}}, "'regoin'"),
    "unknown kind of block": ({"covariates": {"age": V}, "blocks": {"age": "ordinal"}}, "unknown kind 'ordinal'"),
    "blocks of rubbish": ({"covariates": {"age": V}, "blocks": {"age": 3}}, "'age'.*BlockSpec"),
    "blocks that are a list": ({"covariates": {"age": V}, "blocks": ["age"]}, "blocks must be a mapping"),
    "binary with three values": (
        {"covariates": {"age": np.arange(N) % 3}, "blocks": {"age": "binary"}},
        "'age' is binary",
    ),
    "negative weight": ({"weights": put(np.ones(N), 0, -1.0)}, r"weights: 1 negative value \(row 0\)"),
    "weights of zero": ({"weights": np.zeros(N)}, "weights: fewer than two rows"),
    "weight missing": ({"weights": put(np.ones(N), 0, np.nan)}, "weights has 1 missing"),
    "weights too short": ({"weights": np.ones(3)}, "weights have 3 rows but outcome has 30"),
    "weights as a word": ({"weights": "pw"}, "weights must be an array or a table, got str"),
    "one group": ({"groups": np.zeros(N)}, "groups: every row is in one group"),
    "group missing": ({"groups": [None, *REGION[1:]]}, "groups has 1 missing value"),
    "groups of dates": ({"groups": pd.Series(pd.date_range("2020", periods=N))}, "groups holds dates"),
    "groups in two columns": ({"groups": np.zeros((N, 2))}, "groups must be one column"),
}

# Arguments of the method, that the method has.
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown preset": ({"preset": "best"}, "preset must be one of .*'best'"),
    "unknown kind of treatment": ({"treatment_kind": "ordinal"}, "treatment_kind must be one of .*'ordinal'"),
    "unknown kind of outcome": ({"outcome_kind": "counts"}, "outcome_kind must be one of .*'counts'"),
    "binary treatment of many values": ({"treatment_kind": "binary"}, "treatment is binary but has"),
    "negative seed": ({"random_state": -1}, r"random_state must lie in \[0, 2\*\*32\), got -1"),
    "seed with a fraction": ({"random_state": 0.5}, "random_state must be a whole number or None, got 0.5"),
    "seed as a word": ({"random_state": "lucky"}, "random_state must be a whole number or None, got 'lucky'"),
    "a generator as seed": ({"random_state": np.random.default_rng(0)}, "random_state must be a whole number or None"),
    "true as seed": ({"random_state": True}, "random_state must be a whole number or None, got True"),
}

AGE = V[:2]
GOOD = pd.DataFrame({"age": AGE, "region": ["north", "south"]})

# Questions to a model fitted on the table above, and what the message must match.
ASK: dict[str, tuple[Callable[[IVEstimator], Any], str]] = {
    "no covariates": (lambda m: m.predict(1.0), "covariates are missing.*'age', 'region'"),
    "column absent": (lambda m: m.predict(1.0, GOOD[["age"]]), "no column 'region'"),
    "other column": (
        lambda m: m.predict(1.0, GOOD.rename(columns={"age": "aeg"})),
        "no column 'age'. Did you mean 'aeg'",
    ),
    "array too wide": (lambda m: m.predict(1.0, np.zeros((2, 5))), "covariates have 5 columns but the fit had 2"),
    "array too narrow": (lambda m: m.predict(1.0, np.zeros((2, 1))), "covariates have 1 column but the fit had 2"),
    "unseen level": (
        lambda m: m.predict(1.0, GOOD.replace("south", "east")),
        "'region' has levels unseen at fit, 'east'",
    ),
    "level missing": (lambda m: m.predict(1.0, GOOD.replace("south", None)), r"missing values in 'region' \(1\)"),
    "number for a level": (lambda m: m.predict(1.0, GOOD.assign(region=1)), "'region' has levels unseen at fit, 1"),
    "level for a number": (lambda m: m.predict(1.0, GOOD.assign(age="old")), "'age' holds strings"),
    "covariate missing": (lambda m: m.predict(1.0, GOOD.assign(age=np.nan)), r"missing values in 'age' \(2\)"),
    "covariate infinite": (lambda m: m.predict(1.0, GOOD.assign(age=np.inf)), "'age' has 2 infinite values"),
    "covariate huge": (lambda m: m.predict(1.0, GOOD.assign(age=1e300)), "'age' has 2 values .* beyond"),
    "covariate complex": (lambda m: m.predict(1.0, GOOD.assign(age=1j)), "'age' holds complex numbers"),
    "covariate of dates": (lambda m: m.predict(1.0, GOOD.assign(age=pd.Timestamp("2020"))), "'age' holds dates"),
    "duplicated columns": (lambda m: m.predict(1.0, pd.concat([GOOD, GOOD], axis=1)), "duplicated column names"),
    "sparse covariates": (lambda m: m.predict(1.0, scipy.sparse.eye(2)), "covariates is a sparse matrix"),
    "ragged covariates": (
        lambda m: m.predict(1.0, [[1.0, "north"], [2.0]]),
        "covariates has rows of different lengths",
    ),
    "no rows": (lambda m: m.predict(1.0, GOOD.iloc[:0]), "covariates have no rows"),
    "treatment missing": (lambda m: m.predict([1.0, np.nan], GOOD), r"treatment has 1 missing value \(row 1\)"),
    "treatment not there": (lambda m: m.predict(None, GOOD), "treatment must be .*NoneType"),
    "treatment infinite": (lambda m: m.predict(np.inf, GOOD), "treatment has .* infinite"),
    "treatment huge": (lambda m: m.predict(1e300, GOOD), "treatment has .* beyond"),
    "treatment in words": (lambda m: m.predict("high", GOOD), "treatment holds strings"),
    "treatment complex": (lambda m: m.predict(1j, GOOD), "treatment holds complex numbers"),
    "treatment too long": (lambda m: m.predict([1.0, 2.0, 3.0], GOOD), "covariates have 2 rows but treatment has 3"),
    "treatment of no rows": (lambda m: m.predict([], GOOD), "treatment has no rows"),
    "treatment in two columns": (
        lambda m: m.predict(np.zeros((2, 2)), GOOD),
        r"treatment must be one column.*\(2, 2\)",
    ),
    "treatment as a generator": (lambda m: m.predict((x for x in X), GOOD), "treatment must be .*generator"),
    "treatment masked": (lambda m: m.predict(np.ma.masked_equal([1.0, 2.0], 1.0), GOOD), "treatment has 1 masked row"),
    "treatment with another index": (
        lambda m: m.predict(pd.Series([1.0, 2.0], index=[5, 6]), GOOD),
        "covariates and treatment have different pandas indexes",
    ),
    "effect from missing": (lambda m: m.effect(GOOD, t0=np.nan, t1=1.0), "missing"),
    "effect of words": (lambda m: m.effect(GOOD, t0=0.0, t1="much"), "strings"),
    "average effect without covariates": (lambda m: m.ate(t0=0.0, t1=1.0), "covariates are missing"),
    "slope over nothing": (lambda m: m.marginal_effect(1.0, GOOD, step=0.0), "step must be a number above 0, got 0.0"),
    "slope over less": (lambda m: m.marginal_effect(1.0, GOOD, step=-1.0), "step must be a number above 0, got -1.0"),
    "slope over NaN": (lambda m: m.marginal_effect(1.0, GOOD, step=np.nan), "step must be a number above 0, got nan"),
    "slope over words": (
        lambda m: m.marginal_effect(1.0, GOOD, step="small"),
        "step must be a number above 0, got 'small'",
    ),
    "no doses": (lambda m: m.dose_response([], GOOD), "treatments have shape|treatments? .*no rows|at least one"),
    "doses in a matrix": (lambda m: m.dose_response(np.zeros((2, 2)), GOOD), r"treatments have shape \(2, 2\)"),
    "dose missing": (lambda m: m.dose_response([0.0, np.nan], GOOD), "missing"),
    "level above one": (
        lambda m: m.predict_interval(1.0, GOOD, level=95),
        "level must lie between 0 and 1.*95|point estimates",
    ),
    "level of one": (lambda m: m.ate_interval(GOOD, t0=0.0, t1=1.0, level=1.0), "level must lie|point estimates"),
    "level NaN": (lambda m: m.predict_interval(1.0, GOOD, level=np.nan), "level must lie|point estimates"),
    "level in words": (lambda m: m.predict_interval(1.0, GOOD, level="95%"), "level must lie|point estimates"),
}


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fitted(method: str) -> IVEstimator:
    model = METHODS[method](**({} if method == "TSLS" else {"random_state": 0}))
    data = {"y": Y, "x": X, "w": W, "age": V, "region": REGION}
    return model.fit_table(data, outcome="y", treatment="x", instruments="w", covariates=["age", "region"])


def test_the_table_is_as_long_as_promised() -> None:
    assert len(FILE_CASES) + len(FIT) + len(SETTINGS) >= 120
    assert len(ASK) >= 40
    assert len({case["name"] for case in FILE_CASES}) == len(FILE_CASES)
    unused = {file.name for file in FILES.glob("*.csv")} - {case["file"] for case in FILE_CASES}
    assert not unused


@pytest.mark.parametrize("case", FILE_CASES, ids=[case["name"] for case in FILE_CASES])
def test_files(method: str, case: dict[str, Any]) -> None:
    arguments = dict(case["arguments"])
    formula = arguments.pop("formula", None)
    model = METHODS[method]()

    def fit() -> None:
        found = read_table_file(FILES / case["file"])
        if formula is None:
            model.fit_table(found, **arguments)
        else:
            type(model).from_formula(formula, found, **model.get_params(), **arguments)

    with pytest.raises(DataError, match=case["message"]):
        fit()


@pytest.mark.parametrize("case", FILE_CASES, ids=[case["name"] for case in FILE_CASES])
def test_files_on_the_command_line(method: str, case: dict[str, Any], tmp_path: Path) -> None:
    options = [f"--method={COMMANDS[method]}", f"--out={tmp_path / 'fit'}"]
    for name, value in case["arguments"].items():
        options.append(f"--{name}={value if isinstance(value, str) else ','.join(value)}")
    done = CliRunner().invoke(app, ["fit", str(FILES / case["file"]), *options], env={"COLUMNS": "400"})
    said = " ".join(done.output.replace("│", " ").split())
    # What cannot be read as a formula is a matter of usage.
    assert done.exit_code in ((1, 2) if "formula" in case["arguments"] else (1,)), said
    assert re.search(case["message"], said), said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", FIT)
def test_arguments_of_fit(method: str, case: str) -> None:
    changes, message = FIT[case]
    if isinstance(changes.get("treatment"), type(x for x in X)):
        changes = {"treatment": (x for x in X)}
    arguments = {"outcome": Y, "treatment": X, "instruments": W, **changes}
    with pytest.raises(DataError, match=message):
        METHODS[method]().fit(**arguments)


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(method: str, case: str) -> None:
    settings, message = SETTINGS[case]
    if not set(settings) <= set(METHODS[method]().get_params()):
        pytest.skip(f"{method} has no such argument")
    with pytest.raises((ConfigError, DataError), match=message):
        METHODS[method](**settings).fit(Y, X, instruments=W)


@pytest.mark.parametrize("case", ASK)
def test_questions(fitted: IVEstimator, case: str) -> None:
    ask, message = ASK[case]
    with pytest.raises((DataError, ConfigError), match=message):
        ask(fitted)


def test_columns_in_another_order_and_more_of_them_are_understood(fitted: IVEstimator) -> None:
    more = GOOD[["region", "age"]].assign(other=1.0)
    np.testing.assert_array_equal(fitted.predict(1.0, more), fitted.predict(1.0, GOOD))


@pytest.mark.parametrize("unit", [1e-30, 1e-8, 1e8, 1e30])
def test_units_far_from_one_are_handled_or_complained_about(unit: float) -> None:
    """The linear fit is that of the same data in other units, or it is refused."""
    plain = TSLS().fit(Y, X, instruments=W).predict([0.0, 1.0])
    for scaled, at in (({"outcome": Y * unit}, 1.0), ({"treatment": X * unit}, unit), ({"instruments": W * unit}, 1.0)):
        arguments = {"outcome": Y, "treatment": X, "instruments": W, **scaled}
        if not 1e-12 < unit < 1e12 and "outcome" not in scaled:
            with pytest.raises(DataError, match="very large or very small beside 1"):
                TSLS().fit(**arguments)
            continue
        found = TSLS().fit(**arguments).predict(np.array([0.0, 1.0]) * at)
        np.testing.assert_allclose(found / (unit if "outcome" in scaled else 1.0), plain, rtol=1e-4)


def test_small_units_of_a_network_are_complained_about() -> None:
    with pytest.warns(BGMIVWarning, match="'treatment': the standard deviation is below 1e-06.*smaller units"):
        METHODS["KIV"](random_state=0).fit(Y, X * 1e-9, instruments=W)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = METHODS["KIV"](random_state=0).fit(Y * 1e20, X * 1e20, instruments=W * 1e20).predict([0.0, 1e20])
    np.testing.assert_allclose(
        found * 1e-20, KIV(random_state=0).fit(Y, X, instruments=W).predict([0.0, 1.0]), rtol=1e-4
    )
