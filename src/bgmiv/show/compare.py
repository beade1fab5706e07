"""Several fitted methods asked the same question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.show.analysis import MethodRow
from bgmiv.show.markup import element
from bgmiv.show.summary import estimate_cells, text_table
from bgmiv.show.words import clean, number, percent
from bgmiv.trust.contrasts import default_contrast

__all__ = ["Comparison", "compare"]

_POINTS = 25


@dataclass(frozen=True)
class Comparison:
    """What several methods say about the same effect; print it, or show it in a notebook.

    Args:
        outcome, treatment: names.
        t0, t1: the treatments compared, as they are shown.
        n_rows: rows of the fits; 0 if no model holds its rows.
        level: of the intervals.
        treatments: where the curves are given: numbers, or codes of levels.
        methods: the answers.
    """

    outcome: str
    treatment: str
    t0: str
    t1: str
    n_rows: int
    level: float
    treatments: tuple[float, ...]
    methods: tuple[MethodRow, ...]

    @property
    def asked(self) -> str:
        """The question in words."""
        return f"average effect of {clean(self.treatment)} {self.t1} instead of {self.t0} on {clean(self.outcome)}"

    def __str__(self) -> str:
        """The text."""
        header = ["", "effect", f"{percent(self.level)} interval"]
        rows = [[row.name, *cells] for row, cells in zip(self.methods, estimate_cells(self.methods), strict=True)]
        notes = [f"{clean(row.name)}: {row.note}" for row in self.methods if row.note]
        size = f" ({self.n_rows:,} rows)" if self.n_rows else ""
        title = self.asked[:1].upper() + self.asked[1:] + size
        return "\n".join([title, "-" * 80, text_table(header, rows), "-" * 80, *notes])

    def __repr__(self) -> str:
        """The text as well, for consoles."""
        return str(self)

    def _repr_html_(self) -> str:
        header = ["", "effect", f"{percent(self.level)} interval", ""]
        rows = [
            element("tr", element("th", row.name), *(element("td", cell) for cell in (*cells, row.note)))
            for row, cells in zip(self.methods, estimate_cells(self.methods), strict=True)
        ]
        head = element("thead", element("tr", *(element("th", text) for text in header)))
        return element("div", element("p", self.asked), element("table", head, element("tbody", *rows)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def compare(
    models: Mapping[str, Any],
    *,
    t0: Any = None,
    t1: Any = None,
    covariates: Any = None,
    level: float = 0.95,
) -> Comparison:
    """Ask fitted methods for the same average effect.

    Args:
        models: fitted estimators by the names they are shown under.
        t0, t1: the treatments compared; by default the quartiles of the treatment, or its first two levels.
        covariates: the people asked about; by default those of the fit.
        level: of the intervals, for methods that have them.

    Raises:
        ConfigError: there are no models, or one is not fitted.
        DataError: they were fitted on different columns or numbers of rows, or the outcome has three or more levels.

    Example:
        >>> from bgmiv import KIV, TSLS
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 300))
        >>> x = w + u
        >>> linear, kernel = (method.fit(2.0 * x - u, x, instruments=w) for method in (TSLS(), KIV(random_state=0)))
        >>> found = compare({"2SLS": linear, "KIV": kernel}, t0=0.0, t1=1.0)
        >>> [row.name for row in found.methods], round(found.methods[0].estimate)
        (['2SLS', 'KIV'], 2)
    """
    if not models:
        raise ConfigError("compare needs at least one fitted model, such as compare({'2SLS': model}).")
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0.0 < level < 1.0:
        raise ConfigError(f"level must lie between 0 and 1, such as 0.95, got {level!r}.")
    schemas = {str(name): _schema(name, model) for name, model in models.items()}
    _check_same(schemas, {name: _n_rows(model) for name, model in models.items()})
    schema = next(iter(schemas.values()))
    if schema.outcome.width > 1:
        raise DataError(
            f"outcome {schema.outcome.name!r} has {schema.outcome.width} levels, and one number is compared. "
            "Fit one level at a time, with outcome == level."
        )
    with_rows = next((model for model in models.values() if getattr(model, "data_", None) is not None), None)
    data = None if with_rows is None else with_rows.data_
    if (t0 is None) != (t1 is None):
        raise ConfigError("t0 and t1 belong together: give both or none.")
    if t0 is None:
        t0, t1 = _default_treatments(schema, data)
    grid = _grid(schema, data, t0, t1)
    rows = tuple(_row(str(name), model, t0, t1, covariates, level, grid) for name, model in models.items())
    levels = schema.treatment.levels
    treatments = tuple(float(t) for t in (range(len(levels)) if levels else grid))
    shown = (_shown(t0), _shown(t1))
    n_rows = 0 if data is None else int(data.n_rows)
    return Comparison(schema.outcome.name, schema.treatment.name, *shown, n_rows, float(level), treatments, rows)


def _schema(name: Any, model: Any) -> Schema:
    fitted = getattr(model, "fitted_", None)
    if fitted is None:
        raise ConfigError(f"model {str(name)!r} is not fitted: call its fit(...) first.")
    return fitted.schema


def _n_rows(model: Any) -> int | None:
    data = getattr(model, "data_", None)
    return None if data is None else int(data.n_rows)


def _check_same(schemas: Mapping[str, Schema], sizes: Mapping[Any, int | None]) -> None:
    first, schema = next(iter(schemas.items()))
    for name, other in schemas.items():
        for role in ("outcome", "treatment"):
            one, two = getattr(schema, role), getattr(other, role)
            if (one.name, one.levels) != (two.name, two.levels):
                raise DataError(f"{first!r} has {role} {one.name!r} and {name!r} {two.name!r}, or other levels of it.")
        for role, one, two in (
            ("instruments", schema.instruments, other.instruments),
            ("covariates", schema.covariate_names, other.covariate_names),
        ):
            if one != two:
                raise DataError(f"{first!r} and {name!r} were fitted on different {role}: {list(one)} and {list(two)}.")
    known = {str(name): size for name, size in sizes.items() if size is not None}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{name!r} {size}" for name, size in known.items())
        raise DataError(f"the models were fitted on different numbers of rows: {listed}. Fit them on the same.")


def _default_treatments(schema: Schema, data: Any) -> tuple[Any, Any]:
    if schema.treatment.levels:
        return schema.treatment.levels[0], schema.treatment.levels[1]
    if schema.treatment.kind is not BlockKind.continuous:
        return 0.0, 1.0
    if data is None:
        raise ConfigError("t0 and t1 are missing, and none of the models holds its rows. Give both.")
    return default_contrast(data)


def _grid(schema: Schema, data: Any, t0: Any, t1: Any) -> Any:
    if schema.treatment.levels:
        return list(schema.treatment.levels)
    if schema.treatment.kind is not BlockKind.continuous:
        return [0.0, 1.0]
    if data is None:
        return np.linspace(min(t0, t1), max(t0, t1), _POINTS)
    low, high = np.quantile(data.treatment, [0.025, 0.975])
    return np.linspace(float(low), float(high), _POINTS)


def _row(name: str, model: Any, t0: Any, t1: Any, covariates: Any, level: float, grid: Any) -> MethodRow:
    people = covariates
    if people is None and model.fitted_.schema.blocks:
        if getattr(model, "data_", None) is None:
            raise ConfigError(
                f"model {name!r} holds no rows, as it was loaded: give the people asked about as covariates."
            )
        people = model.data_.covariates
    lower = upper = None
    try:
        found = model.ate_interval(people, t0=t0, t1=t1, level=level)
        estimate, lower, upper = float(found.estimate), float(found.lower), float(found.upper)
    except ConfigError:
        estimate = float(model.ate(people, t0=t0, t1=t1))
    curve = tuple(float(value) for value in model.dose_response(grid, people).values)
    return MethodRow(name, estimate, lower, upper, curve, _note(model, lower is None))


def _note(model: Any, point_only: bool) -> str:
    verdict = getattr(model.fitted_, "verdict", None)
    seen = getattr(getattr(verdict, "evidence", None), "n_held_out", 0)
    checked = f"{verdict.level} in {seen:,} held-out rows" if verdict is not None and seen else "in sample, not checked"
    return f"{checked}; point estimate only" if point_only else checked


def _shown(value: Any) -> str:
    return number(float(value), 4) if isinstance(value, int | float | np.number) else clean(value)
