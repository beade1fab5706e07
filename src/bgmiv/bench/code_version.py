"""Which code decides a number: a hash of the sources that a method and a design are made of.

A version is taken from the syntax trees of a module and of all it imports from this package: comments, docstrings and
formatting leave it alone, any other change of the code gives a new one. It is the same on all supported Pythons.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["code_version", "imported_modules"]

_PACKAGE = "bgmiv"

# What users see or where files lie: nothing here decides a number.
_WITHOUT_INFLUENCE = {
    f"{_PACKAGE}.{name}"
    for name in (
        "compilation",
        "errors",
        "progress",
        "estimators.base",
        "folders",
        # No preset averages over the latent posterior.
        "infer.latent_chains",
        "infer.latent_posterior",
        "infer.lifted_hmc",
        "infer.posterior_structural",
        "train.checkpoint",
        "train.history",
        "trust.evidence",
        "trust.held_out",
        "trust.verdict",
    )
}


def code_version(modules: Iterable[str]) -> str:
    """The version of the code that these modules and their imports from this package hold: 16 hex digits.

    Args:
        modules: full names, such as `"bgmiv.estimators.kiv"`.

    >>> code_version(["bgmiv.estimators.kiv"]) == code_version(["bgmiv.estimators.kiv"])
    True
    >>> code_version(["bgmiv.estimators.kiv"]) == code_version(["bgmiv.estimators.tsls"])
    False
    """
    return _version(tuple(sorted(set(modules))))


def imported_modules(module: str) -> frozenset[str]:
    """The module itself and everything of this package that it imports, directly or not.

    >>> "bgmiv.kernels" in imported_modules("bgmiv.estimators.kiv")
    True
    """
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found and name not in _WITHOUT_INFLUENCE:
            found.add(name)
            waiting.extend(_imports(name))
    return frozenset(found)


@cache
def _version(modules: tuple[str, ...]) -> str:
    names = sorted(frozenset().union(*(imported_modules(module) for module in modules)))
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}={_source_hash(name)}\n".encode())
    return digest.hexdigest()[:16]


@cache
def _imports(module: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            # `from a import b` may name a module b; then the package a itself decides nothing.
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                found[inner if _is_module(inner) else node.module] = None
        elif isinstance(node, ast.Import):
            found.update(dict.fromkeys(name.name for name in node.names))
    return tuple(name for name in found if name.startswith(f"{_PACKAGE}."))


@cache
def _is_module(name: str) -> bool:
    if not name.startswith(f"{_PACKAGE}."):
        return False
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@cache
def _tree(module: str) -> ast.Module:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no source of {module}")
    return ast.parse(Path(spec.origin).read_bytes())


@cache
def _source_hash(module: str) -> str:
    digest = hashlib.sha256()
    for part in _written(_tree(module)):
        digest.update(part.encode())
    return digest.hexdigest()


def _written(value: Any) -> Iterator[str]:
    """The tree as text, without docstrings and without what differs between Python versions (empty fields)."""
    if isinstance(value, ast.AST):
        yield f"({type(value).__name__}"
        for name, part in ast.iter_fields(value):
            if part is not None and part != [] and name not in ("ctx", "kind", "type_comment"):
                yield f" {name}="
                yield from _written(_with_text(part) if isinstance(value, ast.JoinedStr) else part)
        yield ")"
    elif isinstance(value, list):
        for part in value:
            if not _is_text_alone(part):
                yield from _written(part)
    else:
        yield repr(value)


def _is_text_alone(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _with_text(parts: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string that show something: Python 3.12 ends some format specifications with an empty text."""
    return [part for part in parts if not (isinstance(part, ast.Constant) and part.value == "")]
