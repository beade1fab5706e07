"""The scikit-learn-shaped estimator that every method shows to a user."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from bgmiv.analysis.analysis import Analysis, AnalysisRequest
from bgmiv.analysis.build import FitOnRows
from bgmiv.covariance import check_clusters
from bgmiv.data.formula import FormulaReader, formula_file, from_formula
from bgmiv.data.ivdata import Covariance, IVData, from_frame
from bgmiv.data.messages import warn_user
from bgmiv.data.schema import RoleKind
from bgmiv.data.table import ColumnReader, Missing, table_rows
from bgmiv.diagnostics.verdict import verdict_of
from bgmiv.errors import ArgumentError, ConfigError, FitWarning, ModelFileError, WeakInstrumentWarning
from bgmiv.estimators.arguments import checked_arguments, unknown_argument
from bgmiv.estimators.fitted import chosen_preset, with_given
from bgmiv.estimators.questions import QuestionsMixin, RandomState
from bgmiv.estimators.saved import (
    SavedModel,
    column_reader,
    data_again,
    fitted_name,
    reader_of,
    saved_model,
    to_save,
    write_saved,
)
from bgmiv.fitted import FittedMethod
from bgmiv.persist.folder import ModelFiles, read_model
from bgmiv.progress import HistoryRow, reporter_for

__all__ = ["IVEstimator", "SeededEstimator"]

# A row is announced that has more than this share of all weight, and more than so many times the mean weight.
_HEAVY_SHARE, _HEAVY_WEIGHT = 0.05, 20.0
_N_SEEDS = 2**32


@dataclass(eq=False, repr=False, kw_only=True)
class IVEstimator(QuestionsMixin, ABC):
    """What users call: `fit`, `fit_table`, `fit_formula`, the questions, the reports, `save`, `get_params`.

    A final subclass is a dataclass, `@dataclass(eq=False, repr=False, kw_only=True)`, whose fields are the
    constructor's arguments, and gives `presets` and `fitted_class`. Arguments are checked by `fit`.

    Args:
        use_instrument: False ignores the instruments.
        treatment_kind, outcome_kind: as in `IVData.from_arrays`.
        covariance: what standard errors and tests, those of `diagnose` too, allow for, as in `IVData.from_arrays`.

    Example:
        >>> from bgmiv import TSLS
        >>> round(TSLS().fit([1.0, 3.0, 4.0, 8.0], [0.0, 1.0, 2.0, 3.0], instruments=[0, 1, 1, 2.0]).ate(t0=0, t1=1), 2)
        2.33
    """

    presets: ClassVar[Mapping[str, Callable[[], Any]]]
    """Functions that give the config of each preset, whose settings arguments of the same name change."""

    fitted_class: ClassVar[type[FittedMethod]]
    saved_parts: ClassVar[tuple[type, ...]] = ()
    """Classes that a saved model may hold beside those that the fields of the fitted result declare."""

    use_instrument: bool = True
    treatment_kind: RoleKind = "auto"
    outcome_kind: RoleKind = "auto"
    covariance: Covariance = "auto"

    def __new__(cls, *args: Any, **params: Any) -> Self:
        """Explain arguments that the method does not have; their values are checked by `fit`."""
        known = cls._parameter_names()
        if args:
            raise ArgumentError(f"{cls.__name__} takes its arguments by name, such as {known[0]}={args[0]!r}.")
        for name in params:
            if name not in known:
                raise unknown_argument(cls.__name__, name, known)
        return super().__new__(cls)

    def _config(self) -> Any:
        """The frozen config these parameters stand for; raises `ConfigError` for bad ones."""
        return with_given(chosen_preset(self.presets, getattr(self, "preset", "default")), self)

    @classmethod
    def _saved_classes(cls, fitted: str) -> tuple[type, ...]:
        """What a model whose fitted result is of that class is made of, beside what its fields declare."""
        return (cls, cls.fitted_class, *cls.saved_parts)

    @checked_arguments
    def fit(
        self,
        outcome: Any,
        treatment: Any,
        *,
        instruments: Any,
        covariates: Any = None,
        blocks: Any = None,
        sample_weight: Any = None,
        clusters: Any = None,
    ) -> Self:
        """Fit the structural function.

        Args:
            outcome: `(n,)` numbers or levels.
            treatment: `(n,)` numbers or levels, endogenous.
            instruments: one or several columns that move the treatment and affect the outcome only through it.
            covariates: array, frame, or mapping of names to columns (2-D entries are vector blocks).
            blocks: declared kinds of covariate columns, as in `IVData.from_arrays`.
            sample_weight: `(n,)` sampling weights: how many rows of the population each row stands for, as in a survey.
                They are not frequencies: multiplying all by ten changes nothing.
            clusters: `(n,)` clusters of rows that are not independent of one another, for intervals and tests; two
                columns, `[firm, year]`, for clusters two ways.

        Returns:
            The fitted estimator itself.

        Warns:
            FitWarning: held-out rows show that the fit is poor, there were too few rows to hold any out, a single row
                has most of the weight, or there are fewer than 20 clusters.
            WeakInstrumentWarning: the instruments are too weak for usual intervals.
        """
        data = IVData.from_arrays(
            outcome,
            treatment,
            instruments=instruments,
            covariates=covariates,
            blocks=blocks,
            sample_weight=sample_weight,
            clusters=clusters,
            **self._kinds(),
        )
        return self._fit(data)

    @checked_arguments
    def fit_table(
        self,
        data: Any,
        *,
        outcome: str,
        treatment: str,
        instruments: str | Sequence[str],
        covariates: str | Sequence[str] | None = None,
        missing: Missing = "raise",
        blocks: Any = None,
        sample_weight: str | None = None,
        clusters: str | Sequence[str] | None = None,
    ) -> Self:
        """Fit the structural function on columns of a table, by name.

        `predict` then takes any table that holds the covariates' columns.

        Args:
            data: a pandas, polars or pyarrow table, or a mapping of names to arrays.
            outcome, treatment, instruments: names of columns.
            covariates: names of columns; strings are categorical, booleans binary.
            missing: "raise" to refuse missing values in these columns, "drop" to leave out rows that have one.
            blocks, sample_weight, clusters: as in `fit`; weights and clusters by the names of their columns.

        Returns:
            The fitted estimator itself.
        """
        rows = from_frame(
            data,
            outcome=outcome,
            treatment=treatment,
            instruments=instruments,
            covariates=covariates,
            missing=missing,
            blocks=blocks,
            sample_weight=sample_weight,
            clusters=clusters,
            **self._kinds(),
        )
        return self._fit(rows, column_reader(rows.schema), n_dropped=table_rows(data) - rows.n_rows)

    @checked_arguments
    def fit_formula(
        self,
        formula: str,
        data: Any,
        *,
        missing: Missing = "raise",
        blocks: Any = None,
        sample_weight: str | None = None,
        clusters: str | Sequence[str] | None = None,
    ) -> Self:
        """Fit the structural function by a formula, such as `"lwage ~ exper + C(region) + [educ ~ nearc4]"`.

        `predict` then takes any table that holds the covariates' untransformed columns. What is set by `predict` is the
        formula's treatment: for `[np.log(price) ~ cost]` the logarithm.

        Args:
            formula: `outcome ~ covariates + [treatment ~ instruments]`; `bgmiv.data.formula.from_formula` lists the
                terms there are.
            data, missing, sample_weight, clusters: as in `fit_table`.
            blocks: declared kinds of covariates, by the names of their terms.

        Returns:
            The fitted estimator itself.

        Example:
            >>> from bgmiv import TSLS
            >>> rng = np.random.default_rng(0)
            >>> w, u = rng.normal(size=(2, 500))
            >>> table = {"wage": 2.0 * (w + u) - u, "educ": w + u, "near": w}
            >>> model = TSLS().fit_formula("wage ~ 1 + [educ ~ near]", table)
            >>> round(model.ate(t0=0.0, t1=1.0))
            2
        """
        rows, reader = from_formula(
            formula,
            data,
            missing=missing,
            blocks=blocks,
            sample_weight=sample_weight,
            clusters=clusters,
            **self._kinds(),
        )
        return self._fit(rows, reader, formula=formula, n_dropped=table_rows(data) - rows.n_rows)

    def save(self, folder: str | Path, *, analysis: Analysis | None = None, overwrite: bool = False) -> None:
        """Save the fit in a folder of its own: `model.json` and `arrays.safetensors`.

        A saved model predicts what this one does, to the last bit on the same machine. It holds no rows of the data
        (but KIV, whose estimate is made of its training rows): names of columns and levels, means and standard
        deviations, and how covariates are read from tables: a formula's terms with what their transforms have learnt.
        A formula that cannot be kept exactly (`bs` with bounds of its own, say) is left out with a warning; a loaded
        model then takes covariates by the names of its terms.

        Args:
            folder: written as a whole, or not at all.
            analysis: what a loaded model can show without rows; by default the one without arguments, if it was asked
                for before.
            overwrite: replace a saved model that is there; a folder with anything else in it is never touched.

        Raises:
            NotFittedError: there is no fit yet.
            ModelFileError: the folder cannot be written or may not be replaced, or a setting is not one of bgmiv's own
                (an integration rule of yours, say).

        Example:
            >>> import bgmiv, tempfile
            >>> rng = np.random.default_rng(0)
            >>> w, u = rng.normal(size=(2, 100))
            >>> model = bgmiv.TSLS().fit(w - u, w + u, instruments=w)
            >>> with tempfile.TemporaryDirectory() as parent:
            ...     model.save(f"{parent}/fit")
            ...     again = bgmiv.load(f"{parent}/fit")
            >>> bool(model.predict(0.5) == again.predict(0.5))
            True
        """
        fitted, reader = self._fitted() if self._on_rows is None else self._on_rows.known, self.reader_
        kept = formula_file(reader) if isinstance(reader, FormulaReader) else reader
        if reader is not None and kept is None:
            names = ", ".join(repr(name) for name in fitted.schema.covariate_names[:10])
            warn_user(f"the formula's computed terms are not saved: a loaded model takes covariates named {names}.")
        asked = self._on_rows and self._on_rows.analyses.get((AnalysisRequest(),))
        shown = analysis or asked or self.saved_analysis_
        document = SavedModel(
            to_save(type(self), self.fit_params_, self.seed_),
            self.seed_,
            fitted,
            kept,
            self.formula_,
            self.n_dropped_,
            self.sampling_,
            shown,
        )
        classes = self._saved_classes(type(fitted).__name__)
        write_saved(Path(folder), type(self).__name__, document, classes, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open a fit of this method that `save` has written, by whomever; `bgmiv.load` opens one of any method.

        Nothing in the folder is run, imported by its name, unpacked, or followed out of the folder; every name, size,
        type and number is checked first. That it opens says nothing about who fitted it, and on what.

        Args:
            folder: the folder.

        Returns:
            A fitted estimator with the arguments it was made with, except `checkpoint`, which is None.

        Raises:
            ModelFileError: the folder holds no saved model of this method, a damaged one, or one of another version.
        """
        return cls._opened(Path(folder), read_model(Path(folder)))

    @classmethod
    def _opened(cls, folder: Path, files: ModelFiles) -> Self:
        classes = cls._saved_classes(fitted_name(files))
        saved = saved_model(folder, files, classes)
        model = saved.estimator
        if not isinstance(model, cls):
            raise ModelFileError(f"{folder} holds no {cls.__name__}. bgmiv.load opens models of any method.")
        model._keep(saved.fitted, saved.seed, reader_of(saved), saved.formula, saved.n_dropped, saved.sampling)
        model.saved_analysis_ = saved.analysis
        return model

    def attach_data(self, data: Any) -> Self:
        """Give a loaded model rows again, so that it can be diagnosed and analysed anew.

        Args:
            data: a table with the columns of the fit, or `IVData` of the same schema.

        Returns:
            The estimator itself.

        Raises:
            DataError: the rows do not fit what the model was fitted on.

        Warns:
            WeakInstrumentWarning: the instruments are too weak for usual intervals.
        """
        rows = data_again(self._fitted().schema, self.sampling_, self.formula_, data, self.covariance)
        self._attach(rows)
        return self

    def _kinds(self) -> dict[str, Any]:
        """The arguments that say how data are read."""
        names = ("treatment_kind", "outcome_kind", "covariance")
        return {name: getattr(self, name) for name in names}

    def _fit(
        self, data: IVData, reader: ColumnReader | FormulaReader | None = None, formula: str = "", n_dropped: int = 0
    ) -> Self:
        config, seed = self._config(), self._seed()
        _announce_heavy_row(data)
        check_clusters(data)
        with reporter_for(self.progress, type(self).__name__) as reporter:
            fitted = config.fit(data, seed, reporter)
        names = {role: getattr(data, f"{role}_name") for role in ("weights", "groups", "second_groups")}
        sampling = {role: name for role, name in names.items() if name}
        self._keep(fitted, seed, reader, formula, n_dropped, sampling)
        self._attach(data)
        verdict = verdict_of(fitted)
        if verdict is not None and verdict.severity in ("doubtful", "failed"):
            warn_user(verdict.sentence, FitWarning)
        return self

    def _attach(self, data: IVData) -> None:
        """Take these rows for those of the fit; what was worked out of others is forgotten."""
        as_fitted = type(self)(**self.fit_params_)
        self.data_ = data
        self._on_rows = FitOnRows(
            self.fitted_,
            data,
            as_fitted._config(),
            self.seed_,
            type(self).__name__,
            {name: repr(value)[:200] for name, value in as_fitted.changed_params().items()},
            self.formula_,
            self.n_dropped_,
            self.progress,
        )
        if self._on_rows.weak:
            warn_user(
                "the instruments are too weak for usual intervals. ate_interval() gives a robust set where there is "
                "one; other intervals are too narrow and say so. diagnose() says how weak the instruments are.",
                WeakInstrumentWarning,
            )

    def _keep(
        self,
        fitted: FittedMethod,
        seed: int,
        reader: ColumnReader | FormulaReader | None,
        formula: str,
        n_dropped: int,
        sampling: dict[str, str],
    ) -> None:
        """Take a fitted result for this estimator's own; what was worked out of an earlier one is forgotten."""
        self.fitted_, self.seed_, self.reader_, self.sampling_ = fitted, seed, reader, sampling
        self.formula_, self.n_dropped_, self.fit_params_ = formula, n_dropped, self.get_params()
        self.data_ = self._on_rows = self.saved_analysis_ = None

    @property
    def history_(self) -> tuple[HistoryRow, ...]:
        """Training history: phase, step and mean losses of each chunk."""
        return self._fitted().history

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments, for the next fit; unknown names are an error."""
        for name, value in params.items():
            if name not in self._parameter_names():
                raise unknown_argument(type(self).__name__, name, self._parameter_names())
            setattr(self, name, value)
        return self

    def changed_params(self) -> dict[str, Any]:
        """The arguments that differ from their defaults."""
        defaults = type(self)().get_params()
        # Of arrays `!=` would be an array.
        return {name: value for name, value in self.get_params().items() if not np.array_equal(value, defaults[name])}

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.changed_params().items())
        return f"{type(self).__name__}({shown})"

    @classmethod
    def _parameter_names(cls) -> list[str]:
        names = [one.name for one in fields(cls)]
        # The method's own first.
        return sorted(names, key=lambda name: name in SeededEstimator.__dataclass_fields__)

    def _seed(self) -> int:
        source = self.random_state
        if isinstance(source, np.random.Generator):
            return int(source.integers(_N_SEEDS))
        if source is None or isinstance(source, np.random.SeedSequence):
            return int((source or np.random.SeedSequence()).generate_state(1)[0])
        whole = isinstance(source, int | np.integer) and not isinstance(source, bool)
        if not whole or not 0 <= source < _N_SEEDS:
            raise ConfigError(
                f"random_state must be None, a whole number of at least 0 and below 2**32, or a Generator or "
                f"SeedSequence of numpy.random, got {source!r}."
            )
        return int(source)


@dataclass(eq=False, repr=False, kw_only=True)
class SeededEstimator(IVEstimator):
    """An estimator whose fit draws at random, with the arguments that all of these have.

    Args:
        use_instrument, treatment_kind, outcome_kind, covariance: as for every method.
        random_state: the seed, or a Generator or SeedSequence that gives one; None draws one. `seed_` keeps it.
        progress: show progress bars; None shows them in notebooks only.
    """

    random_state: RandomState = None
    progress: bool | None = None


def _announce_heavy_row(data: IVData) -> None:
    """Warn of a row with so much weight that the fit is largely about it; weights have mean one."""
    if data.weights is None:
        return
    row, n = int(np.argmax(data.weights)), data.n_rows
    largest = data.weights[row]
    if largest > _HEAVY_SHARE * n and largest > _HEAVY_WEIGHT:
        effective = n**2 / np.sum(np.square(data.weights))
        warn_user(
            f"row {row} has {largest / n:.0%} of all weight ({data.weights_name}): the {n} rows count as "
            f"{effective:.3g} of equal weight (Kish's effective number). Check that it is no mistake.",
            FitWarning,
        )
