"""A fitted estimator as a folder, and back, and rows for a model that was saved without any."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from bgmiv._io import check_process
from bgmiv.analysis.analysis import Analysis
from bgmiv.data.blocks import Level
from bgmiv.data.formula import FormulaFile, FormulaReader, formula_reader, from_formula
from bgmiv.data.ivdata import Covariance, IVData, from_frame
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Query, Rows
from bgmiv.data.scaling import FixedAffine, Identity, RoleScaling, Standardise
from bgmiv.data.schema import BlockKind, CovariateBlock, Schema, Variable
from bgmiv.data.table import ColumnReader
from bgmiv.errors import DataError, ModelFileError
from bgmiv.fitted import FittedMethod
from bgmiv.integrate import FiniteMixture, GaussHermite, MonteCarlo, ObservedTreatment, QuasiMonteCarlo
from bgmiv.persist.codec import Codec, reachable
from bgmiv.persist.folder import ModelFiles, read_model, write_model

__all__ = [
    "SavedModel", "column_reader", "data_again", "fitted_name", "reader_of", "saved_model", "to_save", "write_saved",
]  # fmt: skip

# What may stand where a field is declared with a protocol.
_PLUGS = (
    RoleScaling, Standardise, FixedAffine, Identity,
    GaussHermite, MonteCarlo, QuasiMonteCarlo, FiniteMixture, ObservedTreatment,
)  # fmt: skip


@dataclass(frozen=True)
class SavedModel:
    """What a folder holds.

    Args:
        estimator: the estimator with its arguments, not fitted.
        seed: of the fit.
        fitted: the fit; it holds no rows but those that its method needs to predict.
        reader: how covariates are read from tables; None if the fit was on arrays.
        formula: of the fit, if it had one.
        n_dropped: rows left out for missing values.
        sampling: names of the columns of weights, groups and second groups.
        analysis: what was shown of it, if that was saved.
    """

    estimator: Any
    seed: int
    fitted: FittedMethod
    reader: ColumnReader | FormulaFile | None
    formula: str
    n_dropped: int
    sampling: dict[str, str]
    analysis: Analysis | None


def fitted_name(files: ModelFiles) -> str:
    """The class of the fitted result that a folder says it holds; empty if it says none."""
    fitted = files.raw.get("fitted") if isinstance(files.raw, dict) else None
    return str(fitted.get("is")) if isinstance(fitted, dict) else ""


def write_saved(folder: Path, method: str, model: SavedModel, classes: tuple[type, ...], *, overwrite: bool) -> None:
    """Write a model, made of these classes of its method, to a folder; it is read back before it takes its place."""
    raw, arrays = _codec(classes).encode(model)

    def check(new: Path) -> None:
        saved_model(new, read_model(new), classes)

    write_model(folder, method, raw, arrays, overwrite=overwrite, check=check)


def saved_model(folder: Path, files: ModelFiles, classes: tuple[type, ...]) -> SavedModel:
    """The model of one method from what was read of a folder that anyone may have written.

    A model that opens has answered one question: its parts fit together.

    Raises:
        ModelFileError: the folder holds no such model, or a damaged one.
    """
    saved: SavedModel = _codec(classes).decode(files.raw, files.arrays, SavedModel)
    schema = saved.fitted.schema
    _check_schema(schema, f"{folder}: the schema")
    try:
        saved.estimator._config()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ask(saved.fitted, schema)
    # Whatever JAX or NumPy say of parts that do not fit together: here it becomes an error of the file.
    except Exception as error:
        raise ModelFileError(f"{folder} holds a model whose parts do not fit together: {str(error)[:300]}") from error
    reader_of(saved)
    return saved


def reader_of(saved: SavedModel) -> ColumnReader | FormulaReader | None:
    """How covariates are read from tables.

    Raises:
        ModelFileError: a formula of the file is refused, or makes other covariates than those of the schema.
    """
    file = saved.reader
    if file is None:
        return None
    try:
        reader = file if isinstance(file, ColumnReader) else formula_reader(file)
    # Whatever formulaic or NumPy say of a formula that nobody typed: here it becomes an error of the file.
    except Exception as error:
        raise ModelFileError(f"the saved formula is refused: {str(error)[:300]}") from error
    if reader.names != column_reader(saved.fitted.schema).names:
        raise ModelFileError("the saved formula makes other covariates than those of the schema.")
    return reader


def column_reader(schema: Schema) -> ColumnReader:
    """Reads the covariates of a fit from any table, by name."""
    return ColumnReader(tuple(name for block in schema.blocks for name in block.input_names))


def _ask(fitted: FittedMethod, schema: Schema) -> None:
    """Ask for g, its uncertainty and its support at three rows: parts of a wrong shape often fit one row."""
    rows = np.zeros((3, schema.n_covariates))
    for block in schema.blocks:
        if block.levels is not None:
            rows[:, block.start] = 1.0
    query = Query(np.zeros((2, 1)), Rows(rows))
    values, width = np.asarray(fitted.at(query)), schema.outcome.width
    if values.shape != ((2, 3) if width == 1 else (2, 3, width)) or not np.isfinite(values).all():
        raise ModelFileError(f"its answer has shape {values.shape}, or is not finite")
    for source in fitted.factors(query):
        if source.factors.shape[1:] != values.shape:
            raise ModelFileError(f"its uncertainty '{source.name}' has shape {source.factors.shape[1:]}")
    if np.shape(fitted.in_support(query)) != (2, 3):
        raise ModelFileError("its support has another shape than its answer")


def _codec(classes: tuple[type, ...]) -> Codec:
    if not any(getattr(kind, "compiled", False) for kind in classes):
        return Codec(reachable(SavedModel, *_PLUGS, *classes))
    check_process()
    import jax

    from bgmiv.likelihood import Bernoulli, Categorical, Gaussian, GaussianMixture, Levels
    from bgmiv.nn.features import ImageFeatures, Noised, Raw, VectorFeatures
    from bgmiv.nn.layers import leaky_relu

    parts = (Gaussian, GaussianMixture, Bernoulli, Categorical, Levels, Raw, Noised, VectorFeatures, ImageFeatures)
    functions = {"relu": jax.nn.relu, "leaky_relu": leaky_relu, "tanh": jax.numpy.tanh}
    return Codec(reachable(SavedModel, *_PLUGS, *parts, *classes), functions)


def to_save(method: type, params: Mapping[str, Any], seed: int) -> Any:
    """An estimator with these arguments and this seed, without paths of this computer, which nobody else has."""
    kept = dict(params)
    if "checkpoint" in kept:
        kept["checkpoint"] = None
    if isinstance(kept.get("random_state"), np.random.Generator | np.random.SeedSequence):
        kept["random_state"] = seed
    return method(**kept)


def _check_schema(schema: Schema, where: str) -> None:
    """Refuse blocks that overlap or leave gaps, levels that are not unique, and kinds that contradict their parts."""
    fits = {"the outcome": _variable_fits(schema.outcome), "the treatment": _variable_fits(schema.treatment)}
    fits["the list of blocks"] = _unique([block.name for block in schema.blocks])
    starts = [0, *(block.stop for block in schema.blocks)]
    for i, (block, start) in enumerate(zip(schema.blocks, starts, strict=False)):
        fits[f"block {i}"] = block.start == start and _block_fits(block)
    damaged = [name for name, holds in fits.items() if not holds]
    if damaged:
        raise ModelFileError(f"{where} is damaged: the parts of {damaged[0]} contradict one another.")


def _variable_fits(variable: Variable) -> bool:
    levels = variable.levels
    if levels is None:
        return variable.kind in (BlockKind.continuous, BlockKind.binary)
    kind = BlockKind.binary if len(levels) == 2 else BlockKind.categorical
    return variable.kind is kind and len(levels) >= 2 and _unique(levels)


def _block_fits(block: CovariateBlock) -> bool:
    levels, shape = block.levels, block.shape
    names = block.columns if levels is None else levels
    return (
        len(names) == block.width >= 1
        and _unique(names)
        and (levels is not None) == (block.kind is BlockKind.categorical)
        and (levels is None or (len(block.columns) == 1 and not block.from_array))
        and (shape is not None) == (block.kind is BlockKind.image)
        and (shape is None or (len(shape) == 3 and min(shape) >= 1 and prod(shape) == block.width))
        and block.pixel_max in (1.0, 255.0)
    )


def _unique(names: Sequence[object]) -> bool:
    return len(set(names)) == len(names)


def data_again(
    schema: Schema, sampling: Mapping[str, str], formula: str, table: Any, covariance: Covariance = "auto"
) -> IVData:
    """The rows of a table as a fit with this schema read them.

    Raises:
        DataError: the columns, their kinds or their levels are not those of the fit.
    """
    if isinstance(table, IVData):
        return _recoded(replace(table, covariance=covariance), schema)
    clusters = [sampling[name] for name in ("groups", "second_groups") if name in sampling]
    given: dict[str, Any] = {
        "sample_weight": sampling.get("weights"),
        "clusters": clusters or None,
        "covariance": covariance,
        "treatment_kind": schema.treatment.kind,
        "outcome_kind": schema.outcome.kind,
    }
    if formula:
        rows, _ = from_formula(formula, table, missing="drop", **given)
        return _recoded(rows, schema)
    rows = from_frame(
        table,
        outcome=schema.outcome.name,
        treatment=schema.treatment.name,
        instruments=list(schema.instruments),
        covariates=column_reader(schema).names,
        blocks={
            name: block.kind
            for block in schema.blocks
            for name in (block.input_names if block.shape is None and not block.from_array else ())
        },
        missing="drop",
        **given,
    )
    return _recoded(rows, schema)


def _recoded(data: IVData, schema: Schema) -> IVData:
    """The data with levels in the order of the fit, in which their codes and indicators stand."""
    own = data.schema
    if _columns(own) != _columns(schema):
        raise DataError("the rows do not have the columns of the fit. Give those the model was fitted on.")
    order = [np.zeros(0, np.intp)]
    for block, of_fit in zip(own.blocks, schema.blocks, strict=True):
        own_order = np.arange(block.width)
        if block.levels is not None and of_fit.levels is not None:
            own_order = _positions(of_fit.levels, block.levels, block.name)
        order.append(block.start + own_order)
    return replace(
        data,
        outcome=_codes(data.outcome, own.outcome, schema.outcome),
        treatment=_codes(data.treatment, own.treatment, schema.treatment),
        covariates=data.covariates[:, np.concatenate(order)],
        schema=schema,
    )


def _columns(schema: Schema) -> tuple[Any, ...]:
    return [(block.name, block.kind, block.columns) for block in schema.blocks], schema.instruments


def _codes(values: FloatArray, own: Variable, wanted: Variable) -> FloatArray:
    if (own.name, own.kind) != (wanted.name, wanted.kind):
        raise DataError(f"the fit had {wanted.name!r} ({wanted.kind}), the rows have {own.name!r} ({own.kind}).")
    if own.levels is None or wanted.levels is None:
        return values
    place = _positions(own.levels, wanted.levels, own.name)
    return np.asarray(place[values.astype(np.intp)], values.dtype)


def _positions(levels: Sequence[Level], among: Sequence[Level], name: str) -> np.ndarray:
    """Where each level stands among others."""
    if set(levels) != set(among):
        raise DataError(f"{name!r} does not have the levels of the fit: {', '.join(map(repr, levels))}.")
    return np.asarray([list(among).index(level) for level in levels], np.intp)
