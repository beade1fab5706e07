"""Generic files: what is read is checked first, and what is written is whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pytest
from safetensors.numpy import save

from bgmiv.data.schema import BlockKind, CovariateBlock, Schema, Variable
from bgmiv.errors import ConfigError, ModelFileError
from bgmiv.persist import (
    ArraySpec,
    Codec,
    check_schema,
    file_size,
    pack_arrays,
    parse_json,
    read_file,
    unpack_arrays,
    write_folder,
)


class Colour(StrEnum):
    red = "red"
    blue = "blue"


class Plug(Protocol):
    def act(self) -> None: ...


@dataclass(frozen=True)
class Inner:
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError("size must be above 0.")

    def act(self) -> None: ...


class Measured(NamedTuple):
    value: float
    by_name: dict[str, float]


@dataclass(frozen=True)
class Outer:
    plug: Plug
    maybe: Inner | None
    widths: tuple[int, ...]
    pair: tuple[str, float]
    colour: Colour
    mode: Literal["a", "b"]
    levels: tuple[str | int | float | bool, ...]
    measured: Measured
    rate: float = 0.5
    on: bool = True


CODEC = Codec({"inner": Inner, "outer": Outer, "measured": Measured}, {Plug: (Inner,)}, with_nan=(Measured,))
VALUE = Outer(
    Inner(2), None, (3, 4), ("x", float("inf")), Colour.blue, "b", ("1", 1, 1.5, True, "nan"),
    Measured(0.1 + 0.2, {"loss": -float("inf")}), rate=1e-300,
)  # fmt: skip


def through_text(value: Any) -> Any:
    return parse_json(json.dumps(CODEC.encode(value), allow_nan=False).encode(), "text")


def test_values_come_back_as_they_were() -> None:
    again = CODEC.decode(through_text(VALUE), Outer)
    assert again == VALUE
    assert [type(level) for level in again.levels] == [str, int, float, bool, str]
    assert type(again.colour) is Colour


def test_only_measurements_may_be_nan() -> None:
    measured = CODEC.decode(through_text(Measured(float("nan"), {})), Measured)
    assert np.isnan(measured.value)
    raw = through_text(VALUE) | {"rate": {"is": "float", "value": "nan"}}
    with pytest.raises(ModelFileError, match=r"value\.rate must be a number, got 'nan'"):
        CODEC.decode(raw, Outer)


def test_numbers_of_numpy_become_plain() -> None:
    assert CODEC.encode((np.int64(3), np.float32(0.5), np.bool_(True), np.str_("a"))) == [3, 0.5, True, "a"]


@pytest.mark.parametrize("value", [object(), {1: 2}, {3}, b"x", np.zeros(2), Path("a"), print])
def test_other_values_are_not_written(value: Any) -> None:
    with pytest.raises(ModelFileError, match="cannot be saved"):
        CODEC.encode((value,))


BAD_VALUES: dict[str, tuple[str, Any, str]] = {
    "text for a number": ("rate", "0.5", "a number"),
    "bool for a number": ("rate", True, "a number"),
    "number for a bool": ("on", 1, "true or false"),
    "object for a list": ("widths", {}, "a list"),
    "fraction for a whole number": ("widths", [1.0], "a whole number"),
    "bool for a whole number": ("widths", [True], "a whole number"),
    "endless list of widths": ("widths", [1] * 1001, "more than 1000"),
    "huge whole number": ("widths", [10**30], "too large"),
    "pair of three": ("pair", ["x", 1.0, 2.0], "2 entries"),
    "unknown word": ("mode", "c", "one of 'a', 'b'"),
    "unknown colour": ("colour", "green", "'red', 'blue'"),
    "null": ("colour", None, "'red'"),
    "nested list of levels": ("levels", [["a"]], "a text or a whole number"),
    "other class in a plug": ("plug", {"is": "measured", "value": 1.0, "by_name": {}}, "a 'inner', got 'measured'"),
    "a module's name": ("plug", {"is": "os.system", "size": 1}, "got 'os.system'"),
    "a class' own name": ("plug", {"is": "tests.test_persist.Inner", "size": 1}, "a 'inner'"),
    "no tag": ("plug", {"size": 1}, "does not say what it is"),
    "tag that is no text": ("plug", {"is": ["inner"], "size": 1}, "a 'inner'"),
    "field left out": ("plug", {"is": "inner"}, "lacks size"),
    "unknown field": ("plug", {"is": "inner", "size": 1, "__class__": "x"}, "unknown '__class__'"),
    "refused by the class": ("plug", {"is": "inner", "size": 0}, "value.plug is refused: size must be above 0"),
    "number beyond all": ("rate", float("inf"), "too large"),
    "unknown float": ("rate", {"is": "float", "value": "1e5"}, "a number, got '1e5'"),
    "half a character": ("pair", ["\ud800", 1.0], "surrogate"),
}


@pytest.mark.parametrize(("field", "raw", "message"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_values_of_another_type_are_refused(field: str, raw: Any, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        CODEC.decode(CODEC.encode(VALUE) | {field: raw}, Outer)


BAD_JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "Expecting value"),
    "cut": (b'{"a": [1, 2', "Expecting"),
    "not UTF-8": (b'{"a": "\xff"}', "utf-8"),
    "a key twice": (b'{"b": {"a": 1, "a": 2}}', "'a' is there twice"),
    "NaN": (b"[NaN]", "NaN is no number"),
    "deep lists": (b"[" * 100_000 + b"]" * 100_000, "nested more than 40"),
    "deep objects": (b'{"a":' * 41 + b"1" + b"}" * 41, "nested more than 40"),
    "endless digits": (b"[" + b"9" * 5000 + b"]", "digits"),
    "open text": (b'["' + b'\\"' * 100_000, "Unterminated"),
    "two documents": (b"{}{}", "Extra data"),
}


@pytest.mark.parametrize(("data", "message"), BAD_JSON.values(), ids=BAD_JSON.keys())
def test_bad_json_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=f"a.json is no usable JSON: .*{message}"):
        parse_json(data, "a.json")


def test_brackets_in_texts_are_no_nesting() -> None:
    text = "[" * 100 + '"\\'
    assert parse_json(json.dumps([text]).encode(), "a.json") == [text]


def test_arrays_come_back_as_they_were() -> None:
    arrays = {
        "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "none": np.zeros((0, 4), np.float32),
        "rows": np.arange(3)[::-1],
        "zero": np.float32(-0.0).reshape(()),
    }
    specs = {name: ArraySpec(array.shape, str(array.dtype)) for name, array in arrays.items()}
    again = unpack_arrays(pack_arrays(arrays, "file"), specs, "file")
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        np.testing.assert_array_equal(again[name], array)
    assert np.signbit(again["zero"])


def test_arrays_that_could_not_be_read_are_not_written() -> None:
    with pytest.raises(ModelFileError, match="file: a has the type float16"):
        pack_arrays({"a": np.zeros(2, np.float16)}, "file")
    with pytest.raises(ModelFileError, match="file: a holds numbers that are not finite"):
        pack_arrays({"a": np.array([np.nan])}, "file")


SPECS = {"a": ArraySpec((2, 3), "float32"), "b": ArraySpec((1,), "int64")}
GOOD = {"a": np.ones((2, 3), np.float32), "b": np.ones(1, np.int64)}


def described(header: Any, body: int = 32) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(body)


def entry(dtype: str, shape: Any, *offsets: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


A, B = entry("F32", [2, 3], 0, 24), entry("I64", [1], 24, 32)
BAD_ARRAYS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "truncated"),
    "cut": (save(GOOD)[:-1], "truncated"),
    "longer": (save(GOOD) + b"x", "truncated"),
    "endless header": (b"\xff" * 7 + b"\x7f" + save(GOOD)[8:], "truncated"),
    "header of nothing": (bytes(40), "no usable JSON|truncated"),
    "another shape": (save(GOOD | {"a": np.ones((3, 2), np.float32)}), r"a must have shape \(2, 3\)"),
    "negative shape": (described({"a": entry("F32", [-2, -3], 0, 24), "b": B}), "must have shape"),
    "shape of truths": (described({"a": A, "b": entry("I64", [True], 24, 32)}), "must have shape"),
    "shape that is none": (described({"a": entry("F32", "23", 0, 24), "b": B}), "must have shape"),
    "halves": (described({"a": entry("F16", [2, 3], 0, 24), "b": B}), "a must be F32, got F16"),
    "one less": (described({"a": A}), "lacks b"),
    "one more": (described({"a": A, "b": B, "c": entry("F32", [0], 32, 32)}), "holds 'c'"),
    "metadata": (described({"__metadata__": {"x": "y"}, "a": A, "b": B}), "holds '__metadata__'"),
    "overlap": (described({"a": A, "b": entry("I64", [1], 16, 24)}), "cannot be read"),
    "beyond the end": (described({"a": A, "b": entry("I64", [1], 2**40, 2**40 + 8)}), "cannot be read"),
    "offsets that are none": (described({"a": A, "b": {**B, "data_offsets": "x"}}), "cannot be read"),
    "extra key": (described({"a": {**A, "path": "/etc"}, "b": B}), "not described by"),
    "a list": (described([A, B]), "no object"),
    "deep": (described({"a": A, "b": {**B, "shape": [[[[1]]]]}}), "nested"),
    "not finite": (save(GOOD | {"a": np.full((2, 3), np.inf, np.float32)}), "a holds numbers that are not finite"),
    "a pickle": (b"\x80\x04\x95" + bytes(60), "truncated"),
}


@pytest.mark.parametrize(("data", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS.keys())
def test_other_arrays_are_refused(data: bytes, message: str) -> None:
    assert unpack_arrays(save(GOOD), SPECS, "file").keys() == SPECS.keys()
    with pytest.raises(ModelFileError, match=message):
        unpack_arrays(data, SPECS, "file")


@pytest.mark.parametrize("name", ["", "..", "../a", "/etc/passwd", "sub/a", "a\0b"])
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match=r"not the name of a file|cannot be read"):
        read_file(tmp_path, name, most=10)


def test_only_plain_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_file(tmp_path, "a", most=5) == b"12345"
    assert file_size(tmp_path, "a") == 5
    with pytest.raises(ModelFileError, match="has 5 bytes, more than the 4"):
        read_file(tmp_path, "a", most=4)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(ModelFileError, match="not a plain file"):
            read_file(tmp_path, name, most=5)
    with pytest.raises(ModelFileError, match="does not exist"):
        read_file(tmp_path, "b", most=5)


def write(
    folder: Path,
    text: bytes = b"new",
    *,
    overwrite: bool = False,
    check: Callable[[Path], None] = lambda folder: None,
) -> None:
    write_folder(folder, {"a": text, "b": b""}, overwrite=overwrite, is_ours=lambda f: (f / "a").exists(), check=check)


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def test_a_folder_is_written_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path / "up" / "model")
    assert tree(tmp_path) == {"up": None, "up/model": None, "up/model/a": b"new", "up/model/b": b""}
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    assert (tmp_path / "empty" / "a").read_bytes() == b"new"


def test_only_ours_is_replaced_and_only_if_asked(tmp_path: Path) -> None:
    write(tmp_path / "model", b"old")
    with pytest.raises(ModelFileError, match="overwrite=True"):
        write(tmp_path / "model")
    assert (tmp_path / "model" / "a").read_bytes() == b"old"
    (tmp_path / "link").symlink_to(tmp_path / "model")
    write(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert tree(tmp_path / "model") == {"a": b"new", "b": b""}
    (tmp_path / "model" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = tree(tmp_path)
    for name, message in (("model", "holds other files too"), ("file", "is a file")):
        with pytest.raises(ModelFileError, match=message):
            write(tmp_path / name, b"newer", overwrite=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ModelFileError("no"), KeyboardInterrupt()])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: BaseException) -> None:
    write(tmp_path / "model", b"old")
    before = tree(tmp_path)

    def fail(folder: Path) -> None:
        assert (folder / "a").read_bytes() == b"new"
        raise error

    expected = ModelFileError if isinstance(error, Exception) else KeyboardInterrupt
    for name in ("model", "other"):
        with pytest.raises(expected):
            write(tmp_path / name, overwrite=True, check=fail)
        assert tree(tmp_path) == before


def test_a_folder_where_nothing_may_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelFileError, match=r"cannot be written: .*Nothing was changed"):
        write(tmp_path / "file" / "model")
    with pytest.raises(ModelFileError, match="cannot be written"):
        write(tmp_path / ("n" * 300))


def test_a_rename_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model", b"old")
    before = tree(tmp_path)
    rename = os.rename

    def failing(source: Path, target: Path) -> None:
        if str(source).endswith(".new"):
            raise PermissionError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(ModelFileError, match="Permission denied"):
        write(tmp_path / "model", overwrite=True)
    assert tree(tmp_path) == before


Y = Variable("y", BlockKind.continuous)


def block(kind: str = "continuous", columns: Any = ("a",), stop: int = 1, **parts: Any) -> CovariateBlock:
    return CovariateBlock("a", BlockKind(kind), columns, parts.pop("start", 0), stop, **parts)


BAD_SCHEMAS: dict[str, tuple[Schema, str]] = {
    "image as outcome": (Schema(Variable("y", BlockKind.image), Y, ("w",)), "only covariates"),
    "levels of numbers": (Schema(Variable("y", BlockKind.continuous, ("a", "b")), Y, ()), "continuous and has 2"),
    "three of two levels": (Schema(Variable("y", BlockKind.binary, ("a", "b", "c")), Y, ()), "binary and has 3"),
    "no levels": (Schema(Y, Variable("x", BlockKind.categorical), ()), "categorical and has none"),
    "a level twice": (Schema(Y, Variable("x", BlockKind.categorical, ("a", "b", "a")), ()), "not unique"),
    "equal numbers": (Schema(Y, Variable("x", BlockKind.categorical, (1, 1.0, 2)), ()), "not unique"),
    "a name twice": (Schema(Y, Y, (), (block(), block(start=1, stop=2))), "not unique"),
    "overlap": (Schema(Y, Y, (), (block(columns=("a", "b"), stop=2), block(start=1, stop=2))), "unique|overlap"),
    "negative width": (Schema(Y, Y, (), (block(columns=(), stop=-1),)), "-1 columns"),
    "no columns": (Schema(Y, Y, (), (block(columns=(), stop=0),)), "0 columns"),
    "too few names": (Schema(Y, Y, (), (block(stop=2),)), "1 names for 2"),
    "a column twice": (Schema(Y, Y, (), (block("vector", ("a", "a"), 2),)), "not unique"),
    "flat image": (Schema(Y, Y, (), (block("image"),)), "shape is for images"),
    "shaped vector": (Schema(Y, Y, (), (block("vector", shape=(1, 1, 1)),)), "shape is for images"),
    "another shape": (Schema(Y, Y, (), (block("image", shape=(1, 2, 1)),)), "height, width and channels"),
    "negative shape": (Schema(Y, Y, (), (block("image", shape=(-1, -1, 1)),)), "height, width and channels"),
    "levels of a vector": (Schema(Y, Y, (), (block("vector", levels=("a",)),)), "levels are for categorical"),
    "more levels than columns": (Schema(Y, Y, (), (block("categorical", levels=("a", "b")),)), "2 levels"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "message"), BAD_SCHEMAS.values(), ids=BAD_SCHEMAS.keys())
def test_schemas_that_no_data_have_are_refused(schema: Schema, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        check_schema(schema, "schema")
