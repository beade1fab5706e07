"""Several fitted methods asked the same question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bgmiv.analysis.analysis import AnalysisRequest, MethodRow, Names, with_sets
from bgmiv.analysis.build import answered, grid_of, method_row
from bgmiv.analysis.instruments import Numbers
from bgmiv.analysis.markup import clean, element
from bgmiv.analysis.text import TextTable, html_table, method_table, text_table
from bgmiv.data.files import Tabular
from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.numerals import number

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """What several methods say about the same effect; print it, or show it in a notebook.

    Args:
        outcome, treatment, treatment_levels: names; levels in the order of their codes, empty for a number.
        t0, t1: the treatments compared: numbers, or codes of levels.
        n_rows: rows of the fits; 0 if no model holds its rows.
        level: of the intervals.
        treatments: where the curves are given: numbers, or codes of levels.
        methods: the answers.

    Example:
        >>> import numpy as np
        >>> from bgmiv import TSLS
        >>> w, u, e = np.random.default_rng(0).normal(size=(3, 500))
        >>> model = TSLS().fit(2 * (w + u) - u + e, w + u, instruments=w)
        >>> naive = TSLS(use_instrument=False).fit(2 * (w + u) - u + e, w + u, instruments=w)
        >>> comparison = compare({"2SLS": model, "regression": naive}, t0=0.0, t1=1.0)
        >>> comparison.to_frame()["estimate"].round(1).to_dict()
        {'2SLS': 2.0, 'regression': 1.5}
    """

    outcome: str
    treatment: str
    treatment_levels: Names
    t0: float
    t1: float
    n_rows: int
    level: float
    treatments: Numbers
    methods: tuple[MethodRow, ...]

    @property
    def asked(self) -> str:
        """The question in words."""
        names = self.treatment_levels
        t0, t1 = (clean(names[int(t)]) if names else number(t, 6) for t in (self.t0, self.t1))
        return f"average effect of {clean(self.treatment)} {t1} instead of {t0} on {clean(self.outcome)}"

    def __repr__(self) -> str:
        """The text."""
        header, rows = self._table()
        size = f" ({self.n_rows:,} rows)" if self.n_rows else ""
        title, notes = self.asked[:1].upper() + self.asked[1:] + size, [f"{row[0]}: {row[-1]}" for row in rows]
        return "\n".join([title, "-" * 80, text_table(header, rows), "-" * 80, *notes])

    def _table(self) -> TextTable:
        header, rows = method_table(self.methods, self.level)
        for row, cells in zip(self.methods, rows, strict=True):
            checked = f"{row.severity} in {row.n_held_out:,}" if row.n_held_out else "not checked in"
            notes = [cells[-1], f"{checked} held-out rows", "point estimate only" if row.lower is None else ""]
            cells[-1] = "; ".join(note for note in notes if note)
        return header, rows

    def _repr_html_(self) -> str:
        return element("div", element("p", self.asked), html_table(*self._table()))

    def to_frame(self) -> pd.DataFrame:
        """One row for each method: estimate, ends of the interval, and what held-out rows say."""
        import pandas as pd

        records = []
        for row in self.methods:
            ends = {name: getattr(row.interval, name) for name in ("estimate", "lower", "upper")}
            records.append({"method": row.name, **ends, "held_out": row.severity or "not checked"})
        return pd.DataFrame(with_sets(records, self.methods)).set_index("method")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"methods": [row.to_dict() for row in self.methods]}


def compare(
    models: Mapping[str, Any], *, t0: Any = None, t1: Any = None, covariates: Any = None, level: float = 0.95
) -> Comparison:
    """Ask fitted methods for the same average effect.

    Args:
        models: fitted estimators by the names they are shown under.
        t0, t1: the treatments compared; by default the quartiles of the treatment, or its first two levels.
        covariates: the rows asked about; by default those of each fit, with its sample weights.
        level: of the intervals, for methods that have them.

    Raises:
        ConfigError: there are no models, or one is not fitted.
        DataError: they were fitted on different columns or numbers of rows, or the outcome has three or more levels.

    Example:
        >>> from bgmiv import TSLS
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 300))
        >>> x = w + u
        >>> methods = {"2SLS": TSLS(), "OLS": TSLS(use_instrument=False)}
        >>> fits = {name: method.fit(2.0 * x - u, x, instruments=w) for name, method in methods.items()}
        >>> compare(fits, t0=0.0, t1=1.0).to_frame()["estimate"].round(1).tolist()
        [2.0, 1.5]
    """
    if not models:
        raise ConfigError("compare needs at least one fitted model, such as compare({'2SLS': model}).")
    asked = AnalysisRequest.of(t0=t0, t1=t1, level=level)
    named = {str(name): model for name, model in models.items()}
    schema = _same_schema({name: model._fitted().schema for name, model in named.items()})
    data = _same_rows({name: model.data_ for name, model in named.items()})
    grid = grid_of(schema, data, asked)
    rows = []
    for name, model in named.items():
        fitted, own = model._fitted(), model._on_rows
        if covariates is None and schema.blocks and own is None:
            raise ConfigError(f"model {name!r} was loaded and holds no rows. Give the rows asked about as covariates.")
        answer = answered(fitted, model._rows(covariates), own and own.instrumented, grid)
        rows.append(method_row(name, fitted, answer))
    return Comparison(
        outcome=schema.outcome.name,
        treatment=schema.treatment.name,
        treatment_levels=tuple(map(str, schema.treatment.levels or ())),
        t0=grid.t0,
        t1=grid.t1,
        n_rows=0 if data is None else data.n_rows,
        level=grid.level,
        treatments=tuple(grid.doses.tolist()),
        methods=tuple(rows),
    )


def _same_schema(schemas: Mapping[str, Schema]) -> Schema:
    first, schema = next(iter(schemas.items()))
    if schema.outcome.width > 1:
        raise DataError(
            f"outcome {schema.outcome.name!r} has {schema.outcome.width} levels, and one number is compared. "
            "Fit one level at a time, with outcome == level."
        )
    for name, other in schemas.items():
        others = _columns(other)
        for role, mine in _columns(schema).items():
            if mine != others[role]:
                raise DataError(f"{first!r} and {name!r} were fitted on different {role}: {mine} and {others[role]}.")
    return schema


def _columns(schema: Schema) -> dict[str, list[str]]:
    """Names of each role's columns, and of the levels of the outcome and the treatment."""
    return {
        "outcome": [schema.outcome.name, *map(str, schema.outcome.levels or ())],
        "treatment": [schema.treatment.name, *map(str, schema.treatment.levels or ())],
        "instruments": list(schema.instruments),
        "covariates": list(schema.covariate_names),
    }


def _same_rows(data: Mapping[str, IVData | None]) -> IVData | None:
    """The rows of the first model that has some."""
    known = {name: one for name, one in data.items() if one is not None}
    if len({one.n_rows for one in known.values()}) > 1:
        listed = ", ".join(f"{name!r} {one.n_rows}" for name, one in known.items())
        raise DataError(f"the models were fitted on different numbers of rows: {listed}. Fit them on the same.")
    return next(iter(known.values()), None)
