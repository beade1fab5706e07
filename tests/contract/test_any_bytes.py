"""Any bytes in a model folder: an error of ours or a right model, in little memory and time."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

import bgmiv
from bgmiv.errors import BGMIVError, ModelFileError

resource = pytest.importorskip("resource")
JSON, ARRAYS = "model.json", "arrays.safetensors"
TRIED = settings(max_examples=2 * settings.default.max_examples // 5)

rng = np.random.default_rng(0)
W, AGE, U = rng.normal(size=(3, 60))
REGION = rng.choice(["north", "south", "west"], 60)
TABLE = {"y": 2.0 * (W + AGE + U) - U, "x": W + AGE + U, "w": W, "age": AGE, "region": REGION}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 2SLS fit by formula, with its analysis: all that a folder can hold."""
    model = bgmiv.TSLS().fit_formula("y ~ center(age) + C(region) + [x ~ w]", TABLE)
    model.analysis()
    path: Path = tmp_path_factory.mktemp("saved") / "model"
    model.save(path)
    return path


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000


@pytest.fixture
def opened(saved: Path, tmp_path: Path) -> Callable[..., np.ndarray | None]:
    """What a folder with these files predicts; None if it is refused."""

    def run(**files: bytes) -> np.ndarray | None:
        target = tmp_path / "model"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(saved, target)
        for name, content in files.items():
            (target / {"document": JSON, "arrays": ARRAYS}[name]).write_bytes(content)
        with warnings.catch_warnings():
            # NumPy may warn of numbers that nobody has fitted.
            warnings.simplefilter("ignore")
            try:
                model = bgmiv.load(target)
            except ModelFileError:
                return None
            return model.predict(0.3, TABLE)

    return run


def checked(document: dict[str, Any]) -> bytes:
    """The document with the right checksum, as one who means harm would write it."""
    content = {name: value for name, value in document.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}).encode()


@TRIED
@given(data=st.data())
@pytest.mark.parametrize("name", [JSON, ARRAYS])
def test_damage_is_refused_or_does_not_matter(name: str, saved: Path, opened: Any, data: st.DataObject) -> None:
    content = bytearray((saved / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "drop"]))
        if kind == "flip":
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del content[place + 1 :]
        elif kind == "insert":
            content[place:place] = data.draw(st.binary(max_size=20))
        elif len(content) > 1:
            del content[place]
    found = opened(**{"document" if name == JSON else "arrays": bytes(content)})
    if found is not None:
        np.testing.assert_array_equal(found, bgmiv.load(saved).predict(0.3, TABLE))


@TRIED
@given(document=st.binary(max_size=300), arrays=st.none() | st.binary(max_size=300))
def test_other_bytes_are_refused(opened: Any, document: bytes, arrays: bytes | None) -> None:
    assert opened(document=document, **({} if arrays is None else {"arrays": arrays})) is None


NASTY = st.sampled_from(
    [
        *(10**9, 2**63, 2**64, -1, 0, 1, 1e308, -1e-308, True, None, [], {}, "", "nan", "inf", "-inf", "is", "\ud800"),
        *("../../etc/passwd", "__import__('os')", "TSLS", "a" * 5000, [[[[]]]], ["age"] * 50),
        *({"is": "TSLS"}, {"is": "SavedModel"}, {"array": "model.fitted.coefficients"}, {"array": "absent"}),
    ]
)
VALUES = NASTY | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@TRIED
@given(data=st.data())
def test_any_value_anywhere_is_refused_or_answers(saved: Path, opened: Any, data: st.DataObject) -> None:
    document = json.loads((saved / JSON).read_bytes())
    place: Any = document["model"]
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inside = place[key]
        if not isinstance(inside, dict | list) or not inside or data.draw(st.integers(0, 3)) == 0:
            break
        place = inside
    place[key] = data.draw(VALUES)
    try:
        found = opened(document=checked(document))
    except BGMIVError:
        # It opened, and what it holds does not take this table.
        return
    assert found is None or (found.shape == (60,) and found.dtype == np.float64)


@TRIED
@given(data=st.data())
def test_any_arrays_are_refused_or_answer(saved: Path, opened: Any, data: st.DataObject) -> None:
    arrays = load_arrays((saved / ARRAYS).read_bytes())
    name = data.draw(st.sampled_from(sorted(arrays)))
    dtype = data.draw(st.sampled_from([arrays[name].dtype.str, "f8", "f4", "f2", "i8", "u1", "b1"]))
    shape = data.draw(st.just(arrays[name].shape) | arrays_of.array_shapes(min_dims=0, max_dims=3, max_side=6))
    arrays[name] = data.draw(arrays_of.arrays(np.dtype(dtype), shape))
    content = save_arrays(arrays)
    document = json.loads((saved / JSON).read_bytes())
    document["arrays"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    found = opened(document=checked(document), arrays=content)
    assert found is None or (found.shape == (60,) and found.dtype == np.float64)
