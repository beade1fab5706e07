from __future__ import annotations

import ast
import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bgmiv
from bgmiv.bench import code_version as module
from bgmiv.bench.code_version import code_version, imported_modules

MAIN = '''
"""What it is for."""
from bgmiv.fake_helper import helped
from bgmiv.errors import DataError

def fit(x, scale=2.0):
    """Fit it."""
    return helped(x) * scale
'''
HELPER = "def helped(x):\n    from bgmiv import fake_inner\n    return fake_inner.RATE + x\n"

Version = Callable[..., str]


@pytest.fixture
def version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Version:
    """The version of a module of this package that imports another one, which imports a third."""
    monkeypatch.setattr(bgmiv, "__path__", [*bgmiv.__path__, str(tmp_path)])

    def measure(main: str = MAIN, helper: str = HELPER, inner: str = "RATE = 0.5\n") -> str:
        for name, text in (("fake_main", main), ("fake_helper", helper), ("fake_inner", inner)):
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(f"bgmiv.{name}", None)
        importlib.invalidate_caches()
        for cached in (module._tree, module._imports, module._source_hash, module._is_module, module._version):
            cached.cache_clear()
        return code_version(["bgmiv.fake_main"])

    return measure


def test_it_is_sixteen_hex_digits_and_stays(version: Version) -> None:
    assert version() == version()
    assert len(version()) == 16
    int(version(), 16)


@pytest.mark.parametrize(
    "main",
    [
        MAIN.replace("What it is for.", "Something else."),
        MAIN.replace('    """Fit it."""\n', ""),
        MAIN.replace("Fit it.", "Fit it.\n\n    At length."),
        MAIN + "# a remark\n",
        MAIN.replace("x, scale=2.0", "x,\n    scale = 2.0,\n"),
        MAIN.replace("helped(x) * scale", "(helped(x)\n        * scale)"),
    ],
)
def test_docstrings_remarks_and_form_leave_it(version: Version, main: str) -> None:
    assert main != MAIN
    assert version(main) == version(MAIN)


@pytest.mark.parametrize(
    "changed",
    [
        {"main": MAIN.replace("scale=2.0", "scale=3.0")},
        {"main": MAIN.replace("scale=2.0", "scale=2")},
        {"main": MAIN.replace("helped(x) * scale", "helped(x) + scale")},
        {"main": MAIN.replace("scale", "factor")},
        {"main": MAIN.replace("helped(x)", "helped(x, '')")},
        {"main": MAIN + "\nfit = None\n"},
        {"helper": HELPER.replace("+ x", "- x")},
        {"helper": HELPER + "print('text')\n"},
        {"inner": "RATE = 0.25\n"},
        {"inner": "RATE = -0.5\n"},
    ],
)
def test_any_code_of_what_is_imported_changes_it(version: Version, changed: dict[str, str]) -> None:
    assert version(**changed) != version()


def test_modules_without_influence_are_left_out(version: Version) -> None:
    version()
    assert imported_modules("bgmiv.fake_main") == {"bgmiv.fake_main", "bgmiv.fake_helper", "bgmiv.fake_inner"}
    # What it imports for its messages alone changes the importing module, not the version of what is imported.
    assert version(MAIN.replace("from bgmiv.errors import DataError", "")) != version()


def test_what_decides_a_method_is_found() -> None:
    found = imported_modules("bgmiv.estimators.kiv")
    assert {"bgmiv.estimators.kiv", "bgmiv.train.kiv", "bgmiv.kernels"} <= found
    assert not {"bgmiv.progress", "bgmiv.errors", "bgmiv.estimators.base", "bgmiv.estimators.tsls"} & found
    assert not any(name.startswith(("bgmiv.cli", "bgmiv.bench", "bgmiv.report", "bgmiv.designs")) for name in found)


def test_the_order_of_the_modules_does_not_matter() -> None:
    names = ["bgmiv.estimators.kiv", "bgmiv.designs.demand", "bgmiv.bench.metrics"]
    assert code_version(names) == code_version([*reversed(names), names[0]])
    assert code_version(names) != code_version(names[:2])


def test_an_absent_module_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        code_version(["bgmiv.nowhere"])


SYNTAX = '''
"""A module with about every form of code."""
from __future__ import annotations
import os as system, sys
@decorated(1, *more, key=None, **rest)
class Thing(Base, metaclass=Meta):
    """Of a kind."""
    field: int = 0
    other: str
    def method(self, a, /, b: int = 1, *args: int, c, d=None, **kw) -> dict[str, int] | None:
        """Act."""
        global count, total
        del self.x[1:2, ..., ::3]
        return {**a, "k": -1, b"b": 1.5, "j": 2j, "t": (1, True, None, "text" "joined")}
async def wait(x):
    async with x as y, z:
        async for i in y:
            await i
    return [i async for i in x if i]
def run(x):
    lambda *a, k=1: (yield)
    if (n := len(x)) > 10 and not x or n is None: pass
    elif n in x: raise ValueError(f"{n!r:>{width}} of {x=} {{}}") from None
    else: assert n, "no"
    for i, (j, *k) in x: continue
    else: x += 1 if i else 2
    while True: break
    try: pass
    except (A, B) as error: pass
    except C: pass
    finally: x @= {1, 2}
    match x:
        case {"a": 1, **rest} | [1, *_]: pass
        case Point(x=0) as p if p: pass
        case -1 | None | "s": pass
        case _: return x[0] < 1 <= 2 != 3
    return {k: v for k, v in x for w in v}, {i for i in x}, (i for i in x)
'''


def test_the_text_of_a_tree_is_the_same_on_every_python() -> None:
    # Taken with Python 3.11, 3.12 and 3.13: rows of one machine must be found on another.
    text = "".join(module._written(ast.parse(SYNTAX)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "b52b1644e343b468"
