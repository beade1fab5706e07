"""Every module says what it offers, and everything offered is documented."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Set
from types import ModuleType
from typing import Any

import pytest

import bgmiv

MODULES = ["bgmiv", *(found.name for found in pkgutil.walk_packages(bgmiv.__path__, "bgmiv."))]


def is_protocol(value: type) -> bool:
    return bool(vars(value).get("_is_protocol", False))


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def only_a_docstring(module: ModuleType) -> bool:
    """Whether the module is an empty package."""
    return [type(node) for node in tree(module).body] == [ast.Expr]


def check_all(name: str) -> None:
    module = load(name)
    assert (module.__doc__ or "").strip(), f"{name} has no docstring"
    if only_a_docstring(module):
        return
    assigned = [
        node.value
        for node in tree(module).body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
    ]
    assert len(assigned) == 1, f"{name} has no explicit __all__"
    offered = ast.literal_eval(assigned[0])
    assert len(offered) == len(set(offered))
    for public in offered:
        assert not public.startswith("_")
        assert hasattr(module, public), f"{name} offers {public}, which is not there"


def test_all_is_written_out() -> None:
    for name in MODULES:
        check_all(name)


def check_nothing_left_out(name: str) -> None:
    module = load(name)
    defined = {
        node.name
        for node in tree(module).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    }
    # A command is offered through the application that registers it, not by name.
    if name.startswith("bgmiv.cli"):
        return
    assert defined <= set(getattr(module, "__all__", ())), f"{name} defines more than it offers"


def test_no_public_definition_is_left_out() -> None:
    for name in MODULES:
        check_nothing_left_out(name)


def _members(value: type) -> list[tuple[str, Any]]:
    """The public methods and properties that a class defines itself."""
    skipped = set(dir(tuple)) if issubclass(value, tuple) else set()
    return [
        (name, member)
        for name, member in vars(value).items()
        if not name.startswith("_")
        and name not in skipped
        and (inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod))
    ]


def _declared() -> set[str]:
    """The methods that some protocol documents: what implements them needs no text of its own."""
    owners = {value for name in MODULES for value in vars(load(name)).values() if inspect.isclass(value)}
    protocols = [value for value in owners if value.__module__.startswith("bgmiv") and is_protocol(value)]
    return {name for value in protocols for name, member in _members(value) if (member.__doc__ or "").strip()}


def _undocumented(owner: str, value: Any, declared: Set[str]) -> list[str]:
    if inspect.isfunction(value):
        return [] if inspect.getdoc(value) else [owner]
    if not inspect.isclass(value):
        return []
    doc = value.__doc__ or ""
    # A dataclass without a docstring is given its own signature as one.
    made_up = dataclasses.is_dataclass(value) and doc.startswith(f"{value.__name__}(")
    missing = [owner] if not doc.strip() or made_up else []
    fields = getattr(value, "_fields", ())
    for name, member in _members(value):
        inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if name not in fields and name not in declared and not (inspect.getdoc(inner) or "").strip():
            missing.append(f"{owner}.{name}")
    return missing


def test_every_public_name_is_documented() -> None:
    declared = _declared()
    missing = [
        undocumented
        for name, module in ((name, load(name)) for name in MODULES)
        for public in getattr(module, "__all__", ())
        for undocumented in _undocumented(f"{name}.{public}", getattr(module, public), declared)
    ]
    assert missing == []


def test_the_package_offers_what_a_user_needs() -> None:
    assert {"BGMIV", "TSLS", "IVData"} <= set(bgmiv.__all__)
    assert set(bgmiv.__all__) <= set(dir(bgmiv))
    from bgmiv import BGMIV, TSLS

    assert (BGMIV.__name__, TSLS.__name__) == ("BGMIV", "TSLS")
    with pytest.raises(AttributeError, match="no attribute 'BGM'"):
        bgmiv.BGM


def test_importing_the_package_is_light() -> None:
    code = "import sys, bgmiv; print([m for m in ('jax', 'pandas', 'matplotlib', 'linearmodels') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
