"""Formulas: their parts, their terms, what they may not do, and how they are replayed at prediction."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from linearmodels.iv import IV2SLS

from bgmiv import TSLS
from bgmiv.data.formula import from_formula, split_formula
from bgmiv.errors import BGMIVWarning, DataError

rng = np.random.default_rng(1)
N = 60
COLUMNS: dict[str, Any] = {
    "y": rng.normal(size=N),
    "x": rng.normal(size=N),
    "w": rng.normal(size=N),
    "age": rng.uniform(20, 60, N),
    "income": rng.uniform(1, 9, N),
    "region": rng.choice(["north", "south", "west"], N),
    "quarter": rng.integers(1, 5, N),
    "flag": rng.random(N) < 0.5,
    "odd name (1)": rng.normal(size=N),
}
FRAME = pd.DataFrame(COLUMNS)


def kinds(formula: str, table: Any = FRAME) -> list[tuple[str, str]]:
    data, _ = from_formula(formula, table)
    return [(name, str(block.kind)) for block in data.schema.blocks for name in block.columns]


@pytest.mark.parametrize(
    ("formula", "covariates"),
    [
        ("y ~ a + [x ~ w]", "1 + a"),
        ("y~[x~w]", "1"),
        ("y ~ [x ~ w] + a", "1 + a"),
        ("y ~ 1 + a + [x ~ w] + C(b):a", "1 + 1 + a + C(b):a"),
        ("y ~ a + [x ~ w] - b", "1 + a - b"),
        ("y ~ `a ~ [b]` + [x ~ w]", "1 + `a ~ [b]`"),
        ("y ~ bs(a, knots=[1, 2]) + [x ~ w]", "1 + bs(a, knots=[1, 2])"),
    ],
)
def test_the_bracket_is_split_off(formula: str, covariates: str) -> None:
    assert [side.strip() for side in split_formula(formula).values()] == ["y", "x", "w", covariates]


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ age", "no bracket"),
        ("y ~ age + [x ~ w] + [age ~ w]", "2 brackets, and there is one treatment"),
        ("y ~ age + [x ~ w", "needs one ~ before the bracket and one inside it, which is closed"),
        ("y ~ age + x ~ w]", "no bracket"),
        ("y ~ log(age + [x ~ w])", "no bracket"),
        ("y ~ `age + [x ~ w]", "cannot be read: Formula ended before quote context was closed"),
        ("~ age + [x ~ w]", r"0 outcomes \(none\), not one"),
        ("y ~ age + [~ w]", r"0 treatments \(none\), not one"),
        ("y ~ age + [x ~ ]", "instruments are missing"),
        ("y ~ age + [x ~ 1]", "instruments are missing"),
        ("y ~ age + [x]", "needs one ~ before the bracket and one inside"),
        ("y ~ age + [x ~ w ~ w]", "needs one ~ before the bracket and one inside"),
        ("y + age + [x ~ w]", "needs one ~ before the bracket and one inside"),
        ("y ~ age ~ income + [x ~ w]", "needs one ~ before the bracket and one inside"),
        ("[x ~ w] ~ y", "needs one ~ before the bracket and one inside"),
        ("y ~ age * [x ~ w]", r"put \+ before and after"),
        ("y ~ age[x ~ w]", r"put \+ before and after"),
        ("y ~ age + [x ~ w] * age", r"put \+ before and after"),
        ("y ~ age + [x + income ~ w]", r"2 treatments \(x, income\), not one"),
        ("y + income ~ age + [x ~ w]", "2 outcomes"),
        ("y ~ age + w + [x ~ w]", "'w' is given both as covariates and as instruments"),
        ("y ~ x + [x ~ w]", "'x' is given both as covariates and as treatment"),
        ("y ~ np.exp(x) + [x ~ w]", "'x' is given both as covariates and as treatment"),
        ("y ~ age + [x ~ y]", "'y' is given both as instruments and as outcome"),
        ("y ~ age + [y ~ w]", "'y' is given both as treatment and as outcome"),
        ("y ~ agee + [x ~ w]", r"no column 'agee'\. Did you mean 'age'\?"),
        ("y ~ np.log(Income) + [x ~ w]", r"no column 'Income'\. Did you mean 'income'\?"),
        ("y ~ 0 + age + [x ~ w]", "leave the constant out"),
        ("y ~ age + [x ~ w] - 1", "leave the constant out"),
        ("y ~ age | income + [x ~ w]", "several parts"),
        ("y ~ . + [x ~ w]", "cannot be read"),
        ("y ~ age + 'text' + [x ~ w]", "cannot be read: String literals"),
        ("y ~ C(age + 1) + [x ~ w]", "C\\(\\) takes one column"),
        ("y ~ C(region, age) + [x ~ w]", "C\\(\\) takes one column"),
        ("poly(y, 2) ~ age + [x ~ w]", r"outcome must be one column, got shape \(60, 2\)"),
        ("y ~ np.log(region) + [x ~ w]", "computes with 'region', which holds words"),
        ("y ~ np.log(age, bad=1) + [x ~ w]", "one that it may not have"),
        ("y ~ np.log(age - 40) + [x ~ w]", r"'np.log\(age - 40\)' has \d+ missing values"),
        ("y ~ poly(age, 100000) + [x ~ w]", "setting below 1 or above 100"),
        ("y ~ cr(age, df=100000) + [x ~ w]", "setting below 1 or above 100"),
        ("y ~ bs(age, df=1e5) + [x ~ w]", "setting below 1 or above 100"),
        ("y ~ bs(age, df=1e400) + [x ~ w]", "setting below 1 or above 100"),
        ("y ~ bs(age, df=0) + [x ~ w]", "setting below 1 or above 100"),
        ("y ~ poly(age, 0) + [x ~ w]", "setting below 1 or above 100"),
        ("y ~ `1` + [x ~ w]", "cannot use the column '1' by its name"),
        ("y ~ poly(age, 50*50) + [x ~ w]", "setting that is computed"),
        ("y ~ bs(age, df=60):bs(income, df=60) + [x ~ w]", "covariates make more than 3000 columns"),
        ("y ~ age + [x ~ bs(w, df=60):bs(w, df=61)]", "instruments make more than 3000 columns"),
        ("y ~ (age + income)**99 + [x ~ w]", "power above 9"),
        ("y ~ (age + income)**(10) + [x ~ w]", "power above 9"),
        ("y ~ I(2 ** 3) + [x ~ w]", "power other than of a column"),
        ("y ~ np.abs(3) + [x ~ w]", "is constant"),
        (None, "a formula is a string"),
    ],
)
def test_bad_formulas_are_explained(formula: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_formula(formula, FRAME)


HOSTILE = [
    "__import__('os').system('touch {file}')",
    "().__class__",
    "I(().__class__.__bases__[0].__subclasses__())",
    "open('{file}', 'w')",
    "np.log(open('{file}', 'w'))",
    "exec(\"open('{file}', 'w')\")",
    "I((lambda: open('{file}', 'w'))())",
    "I([open('{file}', 'w') for _ in range(1)])",
    "I(age if open('{file}', 'w') else age)",
    "np.save('{file}', age)",
    "np.fromfile('{file}')",
    "np.vectorize(age)",
    "np.linalg.norm(age)",
    "np.ndarray.tofile(age, '{file}')",
    "np.log.__class__(age)",
    "`age`.to_csv('{file}')",
    "I(age.to_csv('{file}'))",
    "np.log(age).tofile('{file}')",
    "getattr(age, 'to_csv')('{file}')",
    "I(__builtins__)",
    "I(__FORMULAIC_CONTEXT__)",
    "I(np)",
    "Q('age')",
    "`__import__('os')`",
    "I(`__import__`('os'))",
    "np.log(`open`('{file}', 'w'))",
    "scale(age, _state=open('{file}', 'w'))",
    "scale(age, **open('{file}', 'w'))",
    "np.log(*open('{file}', 'w'))",
    "np.log(age, out=age)",
    "{{open('{file}', 'w')}}",
    "I(f'{{open(1)}}')",
    "I((z := age))",
    "I(9**9**9**9)",
    "I(age * 'a')",
    "hashed(age)",
    "age; import os",
    "I(age[0])",
    "I(" + "-" * 9000 + "age)",
    "I(" + "(" * 4000 + "age" + ")" * 4000 + ")",
]


PLACES = ["y ~ {} + [x ~ w]", "y ~ age + [x ~ w + {}]", "{} ~ age + [x ~ w]", "y ~ [{} ~ w]"]


@pytest.mark.parametrize(
    ("place", "expression"),
    [(PLACES[0], expression) for expression in HOSTILE] + [(place, HOSTILE[4]) for place in PLACES[1:]],
)
def test_hostile_formulas_are_refused_without_effect(
    place: str, expression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "made"
    ran: list[str] = []
    for module, name in ((builtins, "open"), (builtins, "eval"), (builtins, "exec"), (os, "system")):
        monkeypatch.setattr(module, name, lambda *given, name=name: ran.append(name))
    with pytest.raises(DataError):
        from_formula(place.format(expression.format(file=file)), COLUMNS)
    monkeypatch.undo()
    assert ran == []
    assert not file.exists()


def test_a_column_may_have_any_name() -> None:
    table = COLUMNS | {"__import__('os')": COLUMNS["age"], "log": COLUMNS["income"]}
    assert kinds("y ~ `__import__('os')` + log + `odd name (1)` + np.exp(`odd name (1)`) + [x ~ w]", table) == [
        ("__import__('os')", "continuous"),
        ("log", "continuous"),
        ("odd name (1)", "continuous"),
        ("np.exp(`odd name (1)`)", "continuous"),
    ]


def test_terms_become_blocks() -> None:
    assert kinds("y ~ 1 + age + region + C(quarter) + flag + np.log(income) + region:age + poly(age, 2) + [x ~ w]") == [
        ("age", "continuous"),
        ("region", "categorical"),
        ("C(quarter)", "categorical"),
        ("flag", "binary"),
        ("np.log(income)", "continuous"),
        ("poly(age, 2)[1]", "continuous"),
        ("poly(age, 2)[2]", "continuous"),
        ("region[T.south]:age", "continuous"),
        ("region[T.west]:age", "continuous"),
    ]


@pytest.mark.parametrize(
    "make",
    [
        dict,
        pd.DataFrame,
        pl.DataFrame,
        lambda columns: pl.DataFrame(columns).with_columns(pl.col("region").cast(pl.Categorical)),
        lambda columns: pd.DataFrame(columns).astype({"region": "category"}),
        lambda columns: pa.table({name: pa.array(values) for name, values in columns.items()}),
    ],
)
def test_every_library_gives_the_same(make: Any) -> None:
    formula = "y ~ age*region + flag + scale(income) + [x ~ w + C(quarter)]"
    (reference, _), (data, reader) = from_formula(formula, FRAME), from_formula(formula, make(COLUMNS))
    assert data.schema == reference.schema
    np.testing.assert_array_equal(data.covariates, reference.covariates)
    assert data.schema.instruments == ("w", "C(quarter)[T.2]", "C(quarter)[T.3]", "C(quarter)[T.4]")
    later = make({name: values[:5] for name, values in COLUMNS.items()})
    np.testing.assert_allclose(data.schema.check_covariates(reader.covariates(later)), reference.covariates[:5])


@pytest.mark.parametrize("term", ["scale(age)", "poly(age, 3)", "bs(age, df=4)", "cr(age, df=3)", "age:C(quarter)"])
def test_transforms_are_replayed_with_what_they_learnt(term: str) -> None:
    data, reader = from_formula(f"y ~ {term} + [x ~ w]", FRAME)
    some = FRAME.iloc[[7, 3]][["quarter", "age"]]
    np.testing.assert_allclose(data.schema.check_covariates(reader.covariates(some)), data.covariates[[7, 3]])


def test_the_numbers_are_linearmodels_own() -> None:
    covariates = "age + region + C(quarter) + np.log(income) + region:age"
    direct = IV2SLS.from_formula(f"y ~ 1 + {covariates} + [x ~ w]", FRAME).fit()
    model = TSLS().fit_formula(f"y ~ {covariates} + [x ~ w]", FRAME)
    assert model.fitted_.slope == pytest.approx(direct.params["x"])
    np.testing.assert_allclose(model.predict(FRAME["x"], FRAME), np.asarray(direct.fitted_values).ravel())


def test_outcome_and_treatment_may_be_transformed() -> None:
    model = TSLS().fit_formula("np.log(income) ~ age + [np.exp(x) ~ w]", FRAME)
    schema = model.fitted_.schema
    assert (schema.outcome.name, schema.treatment.name) == ("np.log(income)", "np.exp(x)")
    data, _ = from_formula("y ~ age + [C(quarter) ~ w]", FRAME)
    assert str(data.schema.treatment.kind) == "categorical"
    assert sorted(data.schema.treatment.levels or ()) == [1, 2, 3, 4]


def test_unseen_levels_are_errors_that_list_the_known() -> None:
    model = TSLS().fit_formula("y ~ C(quarter) + region:age + [x ~ w]", FRAME)
    later = FRAME.head(2)
    with pytest.raises(DataError, match=r"'quarter' has levels unseen at fit, 9.*known levels: \d, \d, \d, \d\."):
        model.predict(0.0, later.assign(quarter=9))
    with pytest.raises(DataError, match=r"'region' has levels unseen at fit, 'east'.*'north'"):
        model.predict(0.0, later.assign(region="east"))
    with pytest.raises(DataError, match="no column 'region'"):
        model.predict(0.0, later.drop(columns="region"))
    with pytest.raises(DataError, match=r"missing values in 'age' \(2\)"):
        model.predict(0.0, later.assign(age=np.nan))
    one = later.head(1)[["quarter", "region", "age"]]
    np.testing.assert_allclose(model.predict(0.0, one), model.predict(0.0, later)[:1])


def test_out_of_range_splines_are_explained() -> None:
    model = TSLS().fit_formula("y ~ bs(age, df=4) + [x ~ w]", FRAME)
    with pytest.raises(DataError, match="cannot be computed"):
        model.predict(0.0, {"age": [500.0]})


def test_missing_rows_are_dropped_before_anything_is_learnt() -> None:
    holes = FRAME.assign(income=FRAME["income"].where(FRAME.index > 9), region=FRAME["region"].where(FRAME.index != 20))
    formula = "y ~ scale(age) + region + np.log(income) + [x ~ w]"
    with pytest.raises(DataError, match=r"'income' \(10\).* in 11 of 60 rows"):
        from_formula(formula, holes)
    with pytest.warns(BGMIVWarning, match="11 of 60 rows are dropped"):
        data, _ = from_formula(formula, holes, missing="drop")
    kept, _ = from_formula(formula, FRAME.drop(index=[*range(10), 20]))
    np.testing.assert_array_equal(data.covariates, kept.covariates)
    assert from_formula("y ~ age + [x ~ w]", holes)[0].n_rows == N


def test_a_term_knows_the_column_it_stands_for() -> None:
    data, _ = from_formula("y ~ age + C(region) + quarter + C(quarter) + flag + np.log(income) + [x ~ w]", FRAME)
    sources = {block.columns[0]: block.source for block in data.schema.blocks if block.source}
    assert sources == {"C(region)": "region", "C(quarter)": "quarter"}


def test_blocks_are_declared_by_term() -> None:
    data, _ = from_formula("y ~ I(age > 40) + [x ~ w]", FRAME, blocks={"I(age > 40)": "binary"})
    assert [str(block.kind) for block in data.schema.blocks] == ["binary"]


def test_the_methods_arguments_reach_it() -> None:
    model = TSLS(use_instrument=False).fit_formula("y ~ age + [flag ~ w]", COLUMNS)
    assert repr(model) == "TSLS(use_instrument=False)"
    zero_one = COLUMNS | {"flag": COLUMNS["flag"].astype(int)}
    kind = TSLS(treatment_kind="binary").fit_formula("y ~ age + [flag ~ w]", zero_one).fitted_.schema.treatment.kind
    assert kind == "binary"
