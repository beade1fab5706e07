"""A formula's reader as plain values: the same columns again, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bgmiv.data.formula import FormulaFile, FormulaReader, formula_file, from_formula
from bgmiv.data.formula import formula_reader as reader_of
from bgmiv.errors import DataError

N = 60
RNG = np.random.default_rng(0)
TABLE: dict[str, Any] = {
    **{name: RNG.normal(size=N) for name in ("y", "x", "w")},
    "age": RNG.normal(size=N) + 6.0,
    "odd name": RNG.normal(size=N) + 6.0,
    "whole": np.arange(N) % 7,
    "flag": np.arange(N) % 2 == 0,
    "region": np.array(["north", "south", "west"] * 20, dtype=object),
    "year": np.arange(N) % 4 + 2000,
    "kind": pd.Series(pd.Categorical(np.array([3, 1, 2] * 20))),
}
LATER = {name: np.asarray(values)[5:17] for name, values in TABLE.items()} | {"kind": TABLE["kind"].iloc[5:17]}


def read(terms: str) -> FormulaReader:
    return from_formula(f"y ~ {terms} + [x ~ w]", pd.DataFrame(TABLE))[1]


KEPT = [
    "age",
    "age + `odd name` + region",
    "C(year) + flag",
    "np.log(age) + I(age**2) + {age + 1}",
    "np.log(`odd name`) + log(age)",
    "scale(age) + center(`odd name`) + standardize(age)",
    "scale(np.log(age))",
    "poly(age, 3)",
    "bs(age, df=5) + bs(whole, df=4, degree=2)",
    "cr(age, df=4) + cs(age, df=5)",
    "cc(age, df=4)",
    "bs(age, knots=[5, 6, 7])",
    "cr(age, df=4, constraints='center')",
    "age*region + C(year):age",
    "region:C(year) + kind:age + flag:age",
    "(age + whole + `odd name`)**2 - age",
    "I(region == 'north'):age + np.where(age > 6, age, 0)",
    "I(region != '}'):age",
]


@pytest.mark.parametrize("terms", KEPT)
@pytest.mark.filterwarnings("ignore::bgmiv.errors.KindWarning")
def test_the_same_columns_to_the_last_bit(terms: str) -> None:
    reader = read(terms)
    file = formula_file(reader)
    assert file is not None
    found, wanted = reader_of(file).covariates(LATER), reader.covariates(LATER)
    assert found.names == wanted.names == reader_of(file).names
    for one, other in zip(found.columns, wanted.columns, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


def test_no_covariates() -> None:
    _, reader = from_formula("y ~ [x ~ w]", TABLE)
    file = formula_file(reader)
    assert file is not None
    assert file.terms == ()
    assert reader_of(file).covariates(LATER).columns == ()


@pytest.mark.parametrize("terms", ["bs(age, df=4, lower_bound=2, upper_bound=10)"])
@pytest.mark.filterwarnings("ignore::bgmiv.errors.KindWarning")
def test_what_cannot_be_kept_is_not(terms: str) -> None:
    assert formula_file(read(terms)) is None


@pytest.mark.filterwarnings("ignore::bgmiv.errors.KindWarning")
def test_unseen_levels_are_refused_before_and_after() -> None:
    reader = read("age:C(year) + region:age")
    file = formula_file(reader)
    assert file is not None
    for one in (reader, reader_of(file)):
        with pytest.raises(DataError, match=r"'year' has levels unseen at fit, 1999"):
            one.covariates(LATER | {"year": np.full(12, 1999)})
        with pytest.raises(DataError, match=r"'region' has levels unseen at fit, 'east'"):
            one.covariates(LATER | {"region": ["east"] * 12})


GOOD = FormulaFile(
    ("age", "region"),
    ((("scale(age)", False),), (("region", True), ("age", True))),
    {"region": ("a", "b")},
    ("region",),
    ((("scale(age)", "ddof"), 1), (("scale(age)", "center"), 3.0), (("scale(age)", "scale"), 2.0)),
)


def term(text: str, is_column: bool = False) -> dict[str, Any]:
    return {"terms": (GOOD.terms[0], ((text, is_column),), GOOD.terms[1])}


ONLY_AGE: dict[str, Any] = {"columns": ("age",), "levels": {}, "words": ()}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a call": (term("__import__('os').system('touch exploded')"), "which formulas may not"),
    "an attribute": (term("age.__class__"), "which formulas may not"),
    "a call of open": (term("open('exploded', 'w')"), "calls open"),
    "a side of its own": (term("open('exploded', 'w').close()} ~ {age"), "cannot be read"),
    "a side after a sum": (term("open('exploded', 'w').close()} +~ {age"), "cannot be read"),
    "a side of its own in a column": (term("age` + {open('exploded', 'w').close()} ~ `age", True), "no column"),
    "several terms": (term("age} + (age + region)**2 + {age"), "cannot be read"),
    "terms without end": (term("age} + (age + region + scale(age))**9 + {age"), "cannot be read"),
    "a column that closes": (term("age` + (age + region)**9 + `age", True), "no column"),
    "an unknown column": (term("income", True), "no column 'income'"),
    "an unknown column in a function": (term("np.log(income)"), "no column 'income'"),
    "an expression called a column": (term("np.log(age)", True), "no column"),
    "terms in another order": ({"terms": GOOD.terms[::-1]}, "not those that it says"),
    "splines without end": (term("bs(age, df=1000000000)"), "setting below 1 or above 100"),
    "degrees without end": (term("poly(age, 1000000000)"), "setting below 1 or above 100"),
    "products without end": (
        {**ONLY_AGE, "terms": ((("bs(age, df=90)", False), ("bs(age, df=91)", False)),), "state": ()},
        "more than 3000 columns",
    ),
    "a setting that is computed": (term("bs(age, df=90 * 90)"), "setting that is computed"),
    "knots without end": (term(f"bs(age, knots={list(range(101))})"), "setting below 1 or above 100"),
    "levels without end": ({"levels": {"region": tuple(map(str, range(3001)))}}, "more than 3000 columns"),
    "products of levels": (
        {
            "terms": (*GOOD.terms, (("C(age)", False), ("C(region)", False))),
            "words": (),
            "levels": {"region": tuple(range(70)), "age": tuple(range(70))},
        },
        "more than 3000 columns",
    ),
    "levels as numbers": (term("np.where(age > 0, region, region)"), "computes with 'region', which holds words"),
    "levels that are numbers as numbers": (
        {**term("np.where(age > 0, region, region)"), "words": ()},
        "computes with 'region', which holds words",
    ),
    "a power without end": (term("I(age ** 99999)"), "power other than"),
    "half an expression": (term("np.log(age"), "cannot be read"),
    "an empty expression": (term(""), "cannot be read"),
    "a term of nothing": ({"terms": ((),)}, "not those that it says"),
    "a long formula": (
        {**ONLY_AGE, "terms": tuple(((f"np.log(age + {i})", False),) for i in range(3001))},
        "more than 3000 columns",
    ),
    "columns without end": ({"columns": (*GOOD.columns, *map(str, range(9)))}, "not those that it says"),
    "levels of no column": ({"levels": {"place": ("a",), **GOOD.levels}}, "not those of its columns"),
    "no levels": ({"levels": {"region": ()}}, "not those of its columns"),
    "words without levels": ({"words": ("age",)}, "not those of its columns"),
    "no state": ({"state": ()}, "not that of its transforms"),
    "state of another": ({"state": (*GOOD.state, (("poly(age)", "alpha"), 1.0))}, "not that of its transforms"),
    "state of another type": ({"state": (*GOOD.state[:2], (("scale(age)", "scale"), "os"))}, "not that of its"),
    "state under it": ({"state": (*GOOD.state, (("scale(age)", "center", "more"), 1.0))}, "not that of its"),
}


@pytest.mark.parametrize("attack", BAD)
def test_what_nobody_could_have_typed_is_refused(attack: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes, message = BAD[attack]
    with pytest.raises(DataError, match=message):
        reader_of(replace(GOOD, **changes))
    assert not list(tmp_path.iterdir())


def test_the_good_one_is_read() -> None:
    reader = reader_of(GOOD)
    found = reader.covariates({"age": [5.0, 3.0], "region": ["a", "b"]})
    assert found.names == ("scale(age)", "region[a]:age", "region[b]:age")
    np.testing.assert_array_equal(found.columns[0].values, [1.0, 0.0])
    np.testing.assert_array_equal(found.columns[2].values, [0.0, 3.0])
