"""BGM-IV: a fit as a folder of two files, and back.

`model.json` holds the settings, the schema, the verdict and each member's history; `arrays.safetensors` the weights,
the scaling, and the projections of reduced blocks. The networks are rebuilt from settings and schema, so that the
second file can hold nothing but the numbers that belong there.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from bgmiv.data.formula_files import FormulaFile, covariate_names, formula_reader
from bgmiv.data.formulas import FormulaReader
from bgmiv.data.frames import ColumnReader
from bgmiv.data.picture_scores import PictureProjection
from bgmiv.data.reduction import FittedReduction, Projection
from bgmiv.data.scaling import Affine, Scaler
from bgmiv.data.schema import Schema
from bgmiv.errors import ModelFileError
from bgmiv.estimators.bgmiv_document import (
    CODEC,
    LookFile,
    MemberFile,
    ModelFile,
    Parameters,
    ProjectionFile,
    SupportFile,
    check_document,
)
from bgmiv.estimators.bgmiv_fit import BGMIVConfig
from bgmiv.estimators.bgmiv_result import FittedBGMIV, Member
from bgmiv.model import BGMIVModel, build_model
from bgmiv.persist import (
    ArraySpec,
    file_size,
    pack_arrays,
    parse_json,
    read_file,
    total_bytes,
    unpack_arrays,
    write_folder,
)
from bgmiv.show.analysis import Analysis
from bgmiv.train.looks import RowsLook
from bgmiv.trust.model_support import ModelSupport
from bgmiv.trust.support import Novelty
from bgmiv.trust.tangent import n_weights

__all__ = ["Saved", "load_fit", "save_fit"]

# Version 1 held no reader of tables, and nothing of what intervals need.
_FORMAT, _VERSION = "bgmiv model", 2
_JSON, _ARRAYS = "model.json", "arrays.safetensors"
_MOST_JSON = _MOST_HEADER = 1 << 24
_ROLES = ("outcome", "treatment", "covariates", "instruments")


class Saved(NamedTuple):
    """What a folder holds.

    Attributes:
        parameters: the estimator's arguments.
        seed: of the fit.
        fitted: the fit, without the latents of its training rows.
        analysis: what was shown of it, if that was saved.
        reader: how covariates are read from tables; None if the fit was on arrays.
    """

    parameters: Parameters
    seed: int
    fitted: FittedBGMIV
    reader: ColumnReader | FormulaReader | None
    analysis: Analysis | None


def save_fit(
    folder: str | Path,
    fitted: FittedBGMIV,
    parameters: Parameters,
    seed: int,
    reader: ColumnReader | FormulaFile | None = None,
    *,
    analysis: Analysis | None = None,
    overwrite: bool,
) -> None:
    """Write a fit to a folder, which is then read back before it takes its place.

    Args:
        folder: the folder.
        fitted: the fit, completed by `with_uncertainty`.
        parameters: the estimator's arguments.
        seed: of the fit.
        analysis: what was shown of it.
        reader: how covariates are read from tables.
        overwrite: replace a saved model that is there.

    Raises:
        ModelFileError: it cannot be saved, or the folder may not be replaced.
    """
    support, directions = fitted.support, fitted.directions
    if support is None or directions is None:
        raise ModelFileError("this result was not completed by with_uncertainty(data), so that it cannot be saved.")
    document = ModelFile(
        parameters,
        seed,
        fitted.schema,
        # A path of this computer: of no use elsewhere, and not one for a file to choose.
        replace(fitted.config, checkpoint=None),
        fitted.verdict,
        tuple(_projection_file(name, found) for name, found in fitted.reduction.projections.items()),
        tuple(_member_file(member) for member in fitted.members),
        reader,
        directions.shape[1],
        SupportFile(len(support.instruments), support.least, support.novelty.limit),
        analysis,
    )
    arrays = pack_arrays(_arrays_of(fitted), _ARRAYS)
    text = json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "written_by": f"bgmiv {version('bgmiv')}",
            "arrays": {"bytes": len(arrays), "sha256": hashlib.sha256(arrays).hexdigest()},
            "model": CODEC.encode(document, "model"),
        },
        ensure_ascii=False,
        allow_nan=False,
        indent=1,
    )
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ModelFileError(f"a name of a column or a level is no text: {error}. Rename it and fit again.") from error
    write_folder(
        Path(folder), {_ARRAYS: arrays, _JSON: data}, overwrite=overwrite, is_ours=_is_model, check=_check_opens
    )


def _check_opens(folder: Path) -> None:
    load_fit(folder)


def _is_model(folder: Path) -> bool:
    try:
        found = parse_json(read_file(folder, _JSON, most=_MOST_JSON), _JSON)
    except ModelFileError:
        return False
    return type(found) is dict and found.get("format") == _FORMAT


def _projection_file(block: str, found: Projection | PictureProjection) -> ProjectionFile:
    inner = _projection_of(found)
    return ProjectionFile(
        block=block,
        n_columns=inner.basis.shape[0],
        n_components=inner.basis.shape[1],
        # Sums are rounded in another order if the matrix lies otherwise in memory.
        column_major=not inner.basis.flags.c_contiguous,
        explained=inner.explained,
        above_noise=inner.above_noise,
        scattering=found.scattering if isinstance(found, PictureProjection) else None,
    )


def _projection_of(found: Projection | PictureProjection) -> Projection:
    return found.projection if isinstance(found, PictureProjection) else found


def _member_file(member: Member) -> MemberFile:
    held_out, training = (None if look is None else LookFile(*look) for look in (member.held_out, member.training))
    return MemberFile(member.history, len(member.held_out_rows), held_out, training, member.attempts)


def _arrays_of(fitted: FittedBGMIV) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for role in _ROLES:
        affine: Affine = getattr(fitted.scaler, role)
        found |= {f"scaling.{role}.shift": affine.shift, f"scaling.{role}.scale": affine.scale}
    for i, projection in enumerate(map(_projection_of, fitted.reduction.projections.values())):
        found |= {f"projections.{i}.{part}": getattr(projection, part) for part in ("mean", "scale", "basis")}
    support, directions = fitted.support, fitted.directions
    assert support is not None
    assert directions is not None
    found |= {f"support.{part}": getattr(support, part) for part in ("instruments", "shares")}
    found |= {f"support.{part}": getattr(support.novelty, part) for part in ("centre", "spread", "precision")}
    for i, member in enumerate(fitted.members):
        found[f"members.{i}.directions"] = directions[i]
        found[f"members.{i}.held_out_rows"] = member.held_out_rows
        found |= {f"members.{i}.{name}": np.asarray(leaf) for name, leaf in _leaves(member.model).items()}
    return found


def _leaves(model: BGMIVModel) -> dict[str, Any]:
    """The arrays of a model, or what stands for them, by their path in it."""
    leaves = jax.tree_util.tree_leaves_with_path(model)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def load_fit(folder: str | Path) -> Saved:
    """Read a fit from a folder that anyone may have written.

    Args:
        folder: the folder.

    Raises:
        ModelFileError: it holds no saved model, a damaged one, or one of a newer format.
    """
    folder = Path(folder)
    raw, size, digest = _envelope(parse_json(read_file(folder, _JSON, most=_MOST_JSON), str(folder / _JSON)), folder)
    where = f"{folder / _JSON}: model"
    document: ModelFile = CODEC.decode(raw, ModelFile, where)
    reduced = check_document(document, where)
    reader = _reader(document, where)
    template = _template(reduced, document.config, where)
    specs = _specs(document, reduced, template)
    arrays = _read_arrays(folder, specs, size, digest)
    reduction = _reduction(document, arrays, folder)
    scaler = Scaler(**{role: _affine(arrays, role, folder) for role in _ROLES})
    members = tuple(_member(i, entry, arrays, template, folder) for i, entry in enumerate(document.members))
    directions = np.stack([arrays[f"members.{i}.directions"] for i in range(len(members))])
    fitted = FittedBGMIV(
        document.config,
        document.schema,
        reduction,
        scaler,
        members,
        document.verdict,
        directions,
        _support(document.support, arrays, folder),
    )
    return Saved(document.parameters, document.seed, fitted, reader, document.analysis)


def _reader(document: ModelFile, where: str) -> ColumnReader | FormulaReader | None:
    file = document.reader
    if file is None:
        return None
    try:
        names = file.names if isinstance(file, ColumnReader) else covariate_names(file)
        reader = file if isinstance(file, ColumnReader) else formula_reader(file)
    # Whatever formulaic or numpy say of a formula that nobody typed: here it becomes an error of the file.
    except Exception as error:
        raise ModelFileError(f"{where}.reader is refused: {str(error)[:300]}") from error
    if names != tuple(name for block in document.schema.blocks for name in block.input_names):
        raise ModelFileError(f"{where}.reader makes other covariates than those of the schema.")
    return reader


def _envelope(found: Any, folder: Path) -> tuple[Any, int, str]:
    """The model's JSON, and the size and hash of its arrays."""
    path = folder / _JSON
    if type(found) is not dict or found.get("format") != _FORMAT:
        raise ModelFileError(f"{path} is not that of a saved model: its format is not '{_FORMAT}'.")
    number = found.get("version")
    if type(number) is not int or number < 1:
        raise ModelFileError(f"{path} has no usable version of the format: it is damaged.")
    if number > _VERSION:
        raise ModelFileError(
            f"{path} has version {min(number, 10**9)} of the format and this bgmiv reads versions up to {_VERSION}. "
            "Upgrade bgmiv to open it."
        )
    if number < _VERSION:
        raise ModelFileError(
            f"{path} has version {number} of the format, which knew no intervals; this bgmiv reads version {_VERSION}. "
            "Fit the model again."
        )
    arrays = found.get("arrays")
    if set(found) != {"format", "version", "written_by", "arrays", "model"} or type(found["written_by"]) is not str:
        raise ModelFileError(f"{path} must hold format, version, written_by, arrays and model, and nothing else.")
    if type(arrays) is not dict or set(arrays) != {"bytes", "sha256"}:
        raise ModelFileError(f"{path}: arrays must hold bytes and sha256, and nothing else.")
    if type(arrays["bytes"]) is not int or type(arrays["sha256"]) is not str:
        raise ModelFileError(f"{path}: arrays must hold a whole number of bytes and a text as sha256.")
    model = found["model"]
    if number == 1 and type(model) is dict:
        model = {"reader": None, **model}
    return model, arrays["bytes"], arrays["sha256"]


def _template(schema: Schema, config: BGMIVConfig, where: str) -> BGMIVModel:
    """The model with shapes and types in place of its arrays; nothing is drawn."""
    try:
        return jax.eval_shape(lambda: build_model(schema, len(schema.instruments), config.model, key=jax.random.key(0)))
    # Whatever JAX says of sizes that no memory holds: this is the boundary where it becomes an error of the file.
    except Exception as error:
        raise ModelFileError(f"{where}.config describes networks that cannot be built: {str(error)[:200]}") from error


def _specs(document: ModelFile, reduced: Schema, template: BGMIVModel) -> dict[str, ArraySpec]:
    widths = (1, 1, reduced.n_covariates, len(reduced.instruments))
    specs = {
        f"scaling.{role}.{part}": ArraySpec((width,), "float64")
        for role, width in zip(_ROLES, widths, strict=True)
        for part in ("shift", "scale")
    }
    for i, entry in enumerate(document.projections):
        specs |= {f"projections.{i}.{part}": ArraySpec((entry.n_columns,), "float64") for part in ("mean", "scale")}
        specs[f"projections.{i}.basis"] = ArraySpec((entry.n_columns, entry.n_components), "float64")
    weights = {name: ArraySpec(tuple(leaf.shape), str(leaf.dtype)) for name, leaf in _leaves(template).items()}
    m, d = document.support.n_instruments, template.layout.dim
    shapes = {"instruments": (m, widths[3]), "shares": (m,), "centre": (d,), "spread": (d,), "precision": (d, d)}
    specs |= {f"support.{part}": ArraySpec(shape, "float64") for part, shape in shapes.items()}
    along = (document.n_directions, n_weights(template))
    for i, member in enumerate(document.members):
        specs[f"members.{i}.directions"] = ArraySpec(along, "float32")
        specs[f"members.{i}.held_out_rows"] = ArraySpec((member.n_held_out,), "int64")
        specs |= {f"members.{i}.{name}": spec for name, spec in weights.items()}
    return specs


def _read_arrays(folder: Path, specs: dict[str, ArraySpec], size: int, digest: str) -> dict[str, NDArray[Any]]:
    path, wanted = folder / _ARRAYS, total_bytes(specs)
    found = file_size(folder, _ARRAYS)
    if found != size or not wanted < found <= wanted + _MOST_HEADER:
        raise ModelFileError(
            f"{path} has {found:,} bytes, where {_JSON} says {size:,} and describes arrays of {wanted:,}: it is "
            "truncated or belongs to another model."
        )
    data = read_file(folder, _ARRAYS, most=found)
    if hashlib.sha256(data).hexdigest() != digest:
        raise ModelFileError(f"{path} is not the file that {_JSON} was written with: it is damaged or another one.")
    return unpack_arrays(data, specs, str(path))


def _affine(arrays: dict[str, NDArray[Any]], role: str, folder: Path) -> Affine:
    shift, scale = (arrays[f"scaling.{role}.{part}"] for part in ("shift", "scale"))
    _check_positive(scale, f"scaling.{role}.scale", folder)
    return Affine(shift, scale)


def _check_positive(scale: NDArray[Any], name: str, folder: Path) -> None:
    if not (scale > 0).all():
        raise ModelFileError(f"{folder / _ARRAYS}: {name} must be above 0 everywhere.")


def _reduction(document: ModelFile, arrays: dict[str, NDArray[Any]], folder: Path) -> FittedReduction:
    shapes = {block.name: block.shape for block in document.schema.blocks}
    projections: dict[str, Projection | PictureProjection] = {}
    for i, entry in enumerate(document.projections):
        mean, scale, basis = (arrays[f"projections.{i}.{part}"] for part in ("mean", "scale", "basis"))
        _check_positive(scale, f"projections.{i}.scale", folder)
        basis = np.asfortranarray(basis) if entry.column_major else basis
        inner = Projection(mean, scale, basis, entry.explained, entry.above_noise)
        shape = shapes[entry.block]
        if entry.scattering is None or shape is None:
            projections[entry.block] = inner
        else:
            projections[entry.block] = PictureProjection(entry.scattering, shape, inner)
    return FittedReduction(document.schema, projections)


def _support(entry: SupportFile, arrays: dict[str, NDArray[Any]], folder: Path) -> ModelSupport:
    found = {part: arrays[f"support.{part}"] for part in ("instruments", "shares", "centre", "spread", "precision")}
    _check_positive(found["spread"], "support.spread", folder)
    _check_positive(found["shares"], "support.shares", folder)
    novelty = Novelty(found["centre"], found["spread"], found["precision"], entry.limit)
    return ModelSupport(found["instruments"], found["shares"], novelty, entry.least)


def _member(
    index: int, entry: MemberFile, arrays: dict[str, NDArray[Any]], template: BGMIVModel, folder: Path
) -> Member:
    rows = arrays[f"members.{index}.held_out_rows"]
    if (rows < 0).any() or len(np.unique(rows)) < len(rows):
        raise ModelFileError(f"{folder / _ARRAYS}: members.{index}.held_out_rows are not positions of different rows.")
    leaves = [jnp.asarray(arrays[f"members.{index}.{name}"]) for name in _leaves(template)]
    model = jax.tree.unflatten(jax.tree.structure(template), leaves)
    held_out, training = (None if look is None else RowsLook(*look) for look in (entry.held_out, entry.training))
    latents = np.empty((0, template.layout.dim), np.float32)
    return Member(model, latents, entry.history, rows, held_out, training, entry.attempts)
