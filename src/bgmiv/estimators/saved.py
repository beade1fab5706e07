"""A fitted estimator as a folder, and back, and rows for a model that was saved without any."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

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

__all__ = ["SavedModel", "data_again", "fitted_name", "reader_of", "saved_model", "to_save", "write_saved"]

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
    found: SavedModel = _codec(classes).decode(files.raw, files.arrays, SavedModel)
    schema = found.fitted.schema
    _check_schema(schema, f"{folder}: the schema")
    try:
        found.estimator._config()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ask(found.fitted, schema)
    # Whatever JAX or NumPy say of parts that do not fit together: here it becomes an error of the file.
    except Exception as error:
        raise ModelFileError(f"{folder} holds a model whose parts do not fit together: {str(error)[:300]}") from error
    reader_of(found)
    return found


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
    if reader.names != tuple(name for block in saved.fitted.schema.blocks for name in block.input_names):
        raise ModelFileError("the saved formula makes other covariates than those of the schema.")
    return reader


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
    for name, shape in [(source.name, source.factors.shape[1:]) for source in fitted.factors(query)]:
        if shape != values.shape:
            raise ModelFileError(f"its uncertainty '{name}' has shape {shape}")
    if np.shape(fitted.in_support(query)) != (2, 3):
        raise ModelFileError("its support has another shape than its answer")


def _codec(classes: tuple[type, ...]) -> Codec:
    if not any(getattr(kind, "compiled", False) for kind in classes):
        return Codec(reachable(SavedModel, *_PLUGS, *classes))
    import jax

    from bgmiv.likelihood import Bernoulli, Categorical, Gaussian, GaussianMixture, Levels
    from bgmiv.nn.features import ImageFeatures, Noised, Raw, VectorFeatures
    from bgmiv.nn.layers import leaky_relu

    parts = (Gaussian, GaussianMixture, Bernoulli, Categorical, Levels, Raw, Noised, VectorFeatures, ImageFeatures)
    functions = {"relu": jax.nn.relu, "leaky_relu": leaky_relu, "tanh": jax.numpy.tanh}
    return Codec(reachable(SavedModel, *_PLUGS, *parts, *classes), functions)


def to_save(estimator: Any, seed: int) -> Any:
    """The estimator's arguments without paths of this computer, which are of no use elsewhere, and with its seed."""
    params = estimator.get_params()
    if "checkpoint" in params:
        params["checkpoint"] = None
    if isinstance(params.get("random_state"), np.random.Generator | np.random.SeedSequence):
        params["random_state"] = seed
    return type(estimator)(**params)


_ROLE_KINDS = (BlockKind.continuous, BlockKind.binary, BlockKind.categorical)


def _check_schema(schema: Schema, where: str) -> None:
    """Refuse blocks that overlap or leave gaps, levels that are not unique, and kinds that contradict their parts."""
    for role in ("outcome", "treatment"):
        _check_role(getattr(schema, role), f"{where}.{role}")
    _check_unique([block.name for block in schema.blocks], f"{where}.blocks: their names")
    start = 0
    for i, block in enumerate(schema.blocks):
        if block.start != start:
            raise ModelFileError(
                f"{where}.blocks[{i}] begins at column {block.start} where {start} is the next: blocks overlap or "
                "leave a gap."
            )
        _check_block(block, f"{where}.blocks[{i}]")
        start = block.stop


def _check_role(variable: Variable, where: str) -> None:
    if variable.kind not in _ROLE_KINDS:
        raise ModelFileError(f"{where}.kind is '{variable.kind}', which only covariates can be.")
    levels = variable.levels
    if levels is not None:
        _check_unique(levels, f"{where}.levels")
    fitting = {
        BlockKind.continuous: levels is None,
        BlockKind.binary: levels is None or len(levels) == 2,
        BlockKind.categorical: levels is not None and len(levels) > 2,
    }
    if not fitting[variable.kind]:
        count = "none" if levels is None else len(levels)
        raise ModelFileError(f"{where} is {variable.kind} and has {count} levels.")


def _check_block(block: CovariateBlock, where: str) -> None:
    if block.width < 1:
        raise ModelFileError(f"{where} has {block.width} columns; a block has one or more.")
    if (block.levels is not None) != (block.kind is BlockKind.categorical):
        raise ModelFileError(f"{where}: levels are for categorical blocks, and these have them; this is {block.kind}.")
    if (block.shape is not None) != (block.kind is BlockKind.image):
        raise ModelFileError(f"{where}: a shape is for images, and these have one; this is {block.kind}.")
    if block.pixel_max not in (1.0, 255.0):
        raise ModelFileError(f"{where}.pixel_max is {block.pixel_max}; a white pixel is 1 or 255.")
    if block.levels is not None:
        _check_unique(block.levels, f"{where}.levels")
        if len(block.levels) != block.width or len(block.columns) != 1 or block.from_array:
            raise ModelFileError(
                f"{where} has {len(block.levels)} levels of {len(block.columns)} columns in {block.width} flat ones."
            )
        return
    _check_unique(block.columns, f"{where}.columns")
    if len(block.columns) != block.width:
        raise ModelFileError(f"{where} has {len(block.columns)} names for {block.width} columns.")
    if block.shape is not None and (len(block.shape) != 3 or min(block.shape) < 1 or prod(block.shape) != block.width):
        raise ModelFileError(f"{where}.shape is {block.shape}, not the height, width and channels of {block.width}.")


def _check_unique(names: Sequence[object], where: str) -> None:
    if len(set(names)) < len(names):
        raise ModelFileError(f"{where} are not unique.")


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
        "treatment_kind": str(schema.treatment.kind.value),
        "outcome_kind": str(schema.outcome.kind.value),
    }
    if formula:
        found, _ = from_formula(formula, table, missing="drop", **given)
        return _recoded(found, schema)
    found = from_frame(
        table,
        outcome=schema.outcome.name,
        treatment=schema.treatment.name,
        instruments=list(schema.instruments),
        covariates=[name for block in schema.blocks for name in block.input_names],
        blocks={
            name: str(block.kind.value)
            for block in schema.blocks
            for name in (block.input_names if block.shape is None and not block.from_array else ())
        },
        missing="drop",
        **given,
    )
    return _recoded(found, schema)


def _recoded(data: IVData, schema: Schema) -> IVData:
    """The data with levels in the order of the fit, in which their codes and indicators stand."""
    own = data.schema
    names = [(block.name, block.kind, block.columns) for block in own.blocks]
    wanted = [(block.name, block.kind, block.columns) for block in schema.blocks]
    if names != wanted or own.instruments != schema.instruments:
        raise DataError("the rows do not have the columns of the fit. Give those the model was fitted on.")
    covariates = data.covariates.copy()
    for block, other in zip(own.blocks, schema.blocks, strict=True):
        if block.levels is not None and other.levels is not None:
            order = _positions(other.levels, block.levels, block.name)
            covariates[:, other.start : other.stop] = data.covariates[:, block.start + order]
    return replace(
        data,
        outcome=_codes(data.outcome, own.outcome, schema.outcome),
        treatment=_codes(data.treatment, own.treatment, schema.treatment),
        covariates=covariates,
        schema=schema,
    )


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
