"""Model folders that someone has made to do harm, or that were damaged: refused by a `ModelFileError`, and no more."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load, save

from bgmiv import BGMIV, ModelFileError
from bgmiv.covariates import CovariateConfig
from bgmiv.data import IVData
from bgmiv.data.reduction import BlockReduction
from bgmiv.data.scattering import Scattering
from bgmiv.estimators.bgmiv import BGMIVConfig
from bgmiv.infer import LatentMap
from bgmiv.model import LatentLayout, ModelConfig
from bgmiv.train import Alternating, DirectStart
from bgmiv.train.ensemble import Ensemble

N = 40
RNG = np.random.default_rng(0)
W, AGE, U = RNG.normal(size=(3, N))
COVARIATES = {
    "region": RNG.choice(["north", "south", "west"], size=N),
    "proxy": AGE[:, None] * RNG.normal(size=16) + 0.1 * RNG.normal(size=(N, 16)),
    "photo": RNG.random((N, 8, 8)),
}
DELETE = object()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with a categorical, a reduced vector and a reduced image block; nothing was trained."""
    config = BGMIVConfig(
        layout=LatentLayout(1, 1, 1, 1),
        model=ModelConfig(
            treatment_hidden=(3,),
            outcome_hidden=(3,),
            covariates=CovariateConfig(block_encoder_hidden=(3,), vector_features=(3, 2), score_features=(3, 2)),
        ),
        reduction=BlockReduction(),
        ensemble=Ensemble(members=1),
        warm_start=DirectStart(iterations=0),
        alternating=Alternating(epochs=0),
        latent_map=LatentMap(steps=0),
    )
    data = IVData.from_arrays(AGE + U, W + U, instruments=W, covariates=COVARIATES, blocks={"region": "categorical"})
    model = BGMIV(random_state=0)
    model.fitted_, model.seed_ = config.fit(data, jax.random.key(0)), 0
    model.data_ = data
    folder = tmp_path_factory.mktemp("good") / "model"
    model.save(folder)
    return folder


def change(path: str, value: Any) -> Callable[[Path], None]:
    """Set or delete an entry of `model.json`, given by its path."""

    def act(folder: Path) -> None:
        document = json.loads((folder / "model.json").read_text())
        *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
        inner = document
        for part in parents:
            inner = inner[part]
        if value is DELETE:
            del inner[last]
        else:
            inner[last] = value(inner[last]) if callable(value) else value
        (folder / "model.json").write_text(json.dumps(document))

    return act


def replaced(name: str, data: bytes | Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Replace a file; that of the arrays together with its size and hash, so that no hash catches it."""

    def act(folder: Path) -> None:
        path = folder / name
        path.write_bytes(data(path.read_bytes()) if callable(data) else data)
        if name == "arrays.safetensors":
            new = path.read_bytes()
            change("arrays", {"bytes": len(new), "sha256": hashlib.sha256(new).hexdigest()})(folder)

    return act


def with_array(name: str, turn: Callable[[np.ndarray], np.ndarray | None]) -> Callable[[Path], None]:
    def turned(data: bytes) -> bytes:
        arrays = load(data)
        new = turn(arrays.pop(name, np.zeros(1, np.float32)))
        return bytes(save(arrays if new is None else arrays | {name: new}))

    return replaced("arrays.safetensors", turned)


def header(turn: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def turned(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        text = json.dumps(turn(json.loads(data[8 : 8 + length]))).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    return replaced("arrays.safetensors", turned)


def link(name: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        outside = folder.parent / f"outside-{name}"
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(outside)

    return act


def in_place_of(name: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return act


class Bomb:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch exploded",)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../exploded", "x")


WEIGHTS = "members.0.treatment.layers.0.kernel"
JSON, ARRAYS = "model.json", "arrays.safetensors"
CONFIG, SCHEMA = "model/config", "model/schema"
HUGE = {"is": "layout", "shared": 10**15, "outcome_only": 1, "treatment_only": 1, "nuisance": 1}

ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    # The folder and its files.
    "no folder": (shutil.rmtree, "does not exist"),
    "no json": (lambda folder: (folder / JSON).unlink(), "holds no saved model"),
    "no arrays": (lambda folder: (folder / ARRAYS).unlink(), "does not exist"),
    "json linked from outside": (link(JSON), "never followed"),
    "arrays linked from outside": (link(ARRAYS), "never followed"),
    "link to nowhere": (in_place_of(JSON, lambda path: path.symlink_to("/nowhere")), "never followed"),
    "folder for json": (in_place_of(JSON, Path.mkdir), "not a plain file"),
    "folder for arrays": (in_place_of(ARRAYS, Path.mkdir), "not a plain file"),
    "pipe for json": (in_place_of(JSON, os.mkfifo), "not a plain file"),
    "empty json": (replaced(JSON, b""), "no usable JSON"),
    "empty arrays": (replaced(ARRAYS, b""), "truncated"),
    "json of 16 MB": (replaced(JSON, lambda data: data + b" " * (1 << 24)), "more than the 16,777,216"),
    "json that is not UTF-8": (replaced(JSON, lambda data: data.replace(b"region", b"regi\xff\xfe")), "utf-8"),
    "json that is cut": (replaced(JSON, lambda data: data[:-200]), "no usable JSON"),
    "deep json": (replaced(JSON, b"[" * 10**6), "nested more than"),
    "a key twice": (replaced(JSON, lambda data: data.replace(b'"version"', b'"version": 1, "version"')), "twice"),
    "NaN in json": (replaced(JSON, lambda data: data.replace(b'"seed": 0', b'"seed": NaN')), "NaN is no number"),
    "json that is a list": (replaced(JSON, b"[]"), "format"),
    "a pickle for json": (replaced(JSON, pickle.dumps(Bomb())), "no usable JSON"),
    "a pickle for arrays": (replaced(ARRAYS, pickle.dumps(Bomb())), "truncated or belongs"),
    "an archive for arrays": (in_place_of(ARRAYS, zipped), "truncated or belongs"),
    # The envelope.
    "another format": (change("format", "pickle"), "format is not"),
    "newer version": (change("version", 3), "Upgrade bgmiv"),
    "older version": (change("version", 1), "Fit the model again"),
    "version of text": (change("version", "1"), "no usable version"),
    "version that is a truth": (change("version", True), "no usable version"),
    "version zero": (change("version", 0), "no usable version"),
    "no version": (change("version", DELETE), "no usable version"),
    "another file named": (change("file", "../../secret"), "nothing else"),
    "path of the arrays": (change("arrays/file", "../arrays.safetensors"), "nothing else"),
    "arrays of another hash": (change("arrays/sha256", "0" * 64), "damaged or another"),
    "arrays of another size": (change("arrays/bytes", 1), "truncated or belongs"),
    "size of text": (change("arrays/bytes", "1"), "whole number"),
    "model of text": (change("model", "model"), "must be a 'model', got 'model'"),
    # The document.
    "unknown tag": (change(f"{CONFIG}/warm_start/is", "cold-start"), "'cold-start'"),
    "tag of a module": (change(f"{CONFIG}/warm_start/integration/is", "os.system"), "got 'os.system'"),
    "tag of another class": (change(f"{CONFIG}/latent_map/is", "standardise"), "got 'standardise'"),
    "extra key": (change(f"{CONFIG}/callback", "print"), "unknown 'callback'"),
    "missing key": (change(f"{CONFIG}/ensemble", DELETE), "lacks ensemble"),
    "text for a number": (change(f"{CONFIG}/batch_size", "16"), "batch_size must be"),
    "list for an object": (change(f"{CONFIG}/model", []), "a list of 0"),
    "object for a list": (change("model/members", {}), "members must be a list"),
    "setting out of range": (change(f"{CONFIG}/model/covariates/dropout", 1.5), r"dropout must lie in \[0, 1\)"),
    "infinite width": (
        change(f"{CONFIG}/model/treatment_hidden", [{"is": "float", "value": "inf"}]), "a whole number",
    ),
    "negative width": (change(f"{CONFIG}/model/outcome_hidden", [-3]), "positive widths"),
    "NaN as a setting": (
        change(f"{CONFIG}/model/covariates/vector_noise", {"is": "float", "value": "nan"}), "must be a number",
    ),
    "checkpoint somewhere": (change(f"{CONFIG}/checkpoint", "/tmp/elsewhere"), "names a path"),
    "another layout": (change(f"{CONFIG}/layout/shared", 2), "not settled"),
    "no layout": (change(f"{CONFIG}/layout", None), "not settled"),
    "networks beyond all memory": (
        lambda folder: (change(f"{CONFIG}/layout", HUGE)(folder), change(f"{CONFIG}/model/layout", HUGE)(folder)),
        "truncated or belongs|cannot be built",
    ),
    "wider networks": (change(f"{CONFIG}/model/treatment_hidden", [10**6, 10**6]), "truncated or belongs"),
    "instruments that are not used": (change(f"{CONFIG}/use_instrument", False), "the other way round"),
    "more instruments": (change(f"{SCHEMA}/instruments", ["w", "w2"]), "must have shape|truncated"),
    "no members": (change("model/members", []), "1 to 1, got 0"),
    "more members": (change("model/members", lambda members: members * 2), "1 to 1, got 2"),
    "negative held-out rows": (change("model/members/0/n_held_out", -1), "held-out rows"),
    "seed out of range": (change("model/seed", -1), "seed must lie"),
    "a better verdict": (change("model/verdict/level", "good"), "but its findings are"),
    "unknown preset": (change("model/parameters/preset", "__import__"), "preset must be one of"),
    "bad random state": (change("model/parameters/random_state", 2**40), "random_state must lie"),
    "a level twice": (change(f"{SCHEMA}/blocks/0/levels", ["north", "north", "west"]), "not unique"),
    "level that is a list": (change(f"{SCHEMA}/blocks/0/levels/0", ["north"]), r"levels\[0\] must be"),
    "overlapping blocks": (change(f"{SCHEMA}/blocks/1/start", 1), "overlap or leave a gap"),
    "negative block": (change(f"{SCHEMA}/blocks/0/stop", -1), "-1 columns"),
    "image of another shape": (change(f"{SCHEMA}/blocks/2/shape", [8, 7, 1]), "height, width and channels"),
    "image of a negative shape": (change(f"{SCHEMA}/blocks/2/shape", [-8, -8, 1]), "height, width and channels"),
    "outcome that is an image": (change(f"{SCHEMA}/outcome/kind", "image"), "only covariates"),
    "projection of no block": (change("model/projections/0/block", "../proxy"), "no vector block"),
    "projection of levels": (change("model/projections/0/block", "region"), "no vector block"),
    "projection of another width": (change("model/projections/0/n_columns", 10**12), "maps 1000000000000 columns"),
    "projection to nothing": (change("model/projections/0/n_components", 0), "1 or more columns and components"),
    "a block reduced twice": (change("model/projections", lambda found: [found[0], found[0]]), "twice"),
    "scales beyond all memory": (
        change("model/projections/1/scattering/scales", 10**9), "too many scales or directions",
    ),
    "directions beyond all memory": (
        change("model/projections/1/scattering/directions", 10**9), "too many scales or directions",
    ),
    # The arrays.
    "arrays cut": (replaced(ARRAYS, lambda data: data[:-4]), "truncated"),
    "huge header length": (replaced(ARRAYS, lambda data: b"\xff" * 7 + b"\x7f" + data[8:]), "truncated"),
    "header length beyond the file": (
        replaced(ARRAYS, lambda data: len(data).to_bytes(8, "little") + data[8:]), "truncated",
    ),
    "weights of NaN": (with_array(WEIGHTS, lambda a: np.full_like(a, np.nan)), "not finite"),
    "infinite weights": (with_array(WEIGHTS, lambda a: np.full_like(a, np.inf)), "not finite"),
    "weights of another shape": (with_array(WEIGHTS, lambda a: a.reshape(1, -1)), "must have shape"),
    "halves": (with_array(WEIGHTS, lambda a: a.astype(np.float16)), "truncated"),
    "halves in a header": (header(lambda h: h | {WEIGHTS: h[WEIGHTS] | {"dtype": "F16"}}), "must be F32, got F16"),
    "negative shape": (header(lambda h: h | {WEIGHTS: h[WEIGHTS] | {"shape": [-3, -3]}}), "must have shape"),
    "overlap in a header": (header(lambda h: h | {WEIGHTS: h[WEIGHTS] | {"data_offsets": [0, 36]}}), "cannot be read"),
    "a weight less": (with_array(WEIGHTS, lambda a: None), "truncated"),
    "a weight more": (with_array("members.0.more", lambda a: a), "truncated"),
    "an empty weight more": (with_array("members.0.more", lambda a: a[:0]), "holds 'members.0.more'"),
    "a weight renamed": (header(lambda h: {n.replace("kernel", "../kernel"): e for n, e in h.items()}), "lacks"),
    "scale of zero": (with_array("scaling.outcome.scale", np.zeros_like), "scale must be above 0"),
    "negative scale": (with_array("scaling.treatment.scale", lambda a: -a), "scale must be above 0"),
    "projection's scale of zero": (with_array("projections.0.scale", np.zeros_like), "scale must be above 0"),
    "projection of NaN": (with_array("projections.1.basis", lambda a: a * np.nan), "not finite"),
}  # fmt: skip


def entries(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_the_model_itself_is_opened(good: Path) -> None:
    model = BGMIV.load(good)
    assert set(model.fitted_.reduction.projections) == {"proxy", "photo"}
    scattering = model.fitted_.reduction.projections["photo"].scattering
    assert scattering == Scattering()
    assert np.isfinite(model.predict(0.5, COVARIATES)).all()


@pytest.mark.parametrize(("attack", "message"), ATTACKS.values(), ids=ATTACKS.keys())
def test_it_is_refused(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    attack(folder)
    monkeypatch.chdir(tmp_path)
    before = entries(tmp_path)
    with pytest.raises(ModelFileError, match=message):
        BGMIV.load(folder)
    assert entries(tmp_path) == before


def test_held_out_rows_are_positions(good: Path, tmp_path: Path) -> None:
    for rows in ([-1, 2], [3, 3]):
        folder = tmp_path / str(rows[0])
        shutil.copytree(good, folder)
        change("model/members/0/n_held_out", 2)(folder)
        with_array("members.0.held_out_rows", lambda a, rows=rows: np.array(rows, np.int64))(folder)
        with pytest.raises(ModelFileError, match="positions of different rows"):
            BGMIV.load(folder)


def test_other_files_beside_are_not_looked_at(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    (folder / "weights.pkl").write_bytes(pickle.dumps(Bomb()))
    (folder / "__init__.py").write_text("raise SystemExit")
    BGMIV.load(folder)
    (tmp_path / "link").symlink_to(folder)
    BGMIV.load(tmp_path / "link")


@pytest.mark.parametrize("name", ["", "a\0b", "n" * 5000, "/dev/null"])
def test_folders_that_cannot_be(name: str) -> None:
    with pytest.raises(ModelFileError):
        BGMIV.load(name)


def test_bytes_changed_at_random_never_break_out(good: Path, tmp_path: Path) -> None:
    """Whatever a byte of the JSON becomes, the model opens or a `ModelFileError` says why not."""
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    data, rng, refused = (good / JSON).read_bytes(), np.random.default_rng(0), 0
    for _ in range(300):
        changed = bytearray(data)
        for position in rng.integers(len(data), size=rng.integers(1, 4)):
            changed[position] = rng.choice(list(b'0123456789-.eE"{}[],:ntf\\\x00\xff'))
        (folder / JSON).write_bytes(bytes(changed))
        try:
            BGMIV.load(folder)
        except ModelFileError:
            refused += 1
    assert refused > 200
