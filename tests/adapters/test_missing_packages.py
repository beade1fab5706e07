"""Without their packages adapters say what is missing; `isolated/test_dowhy_itself.py` tries the real DoWhy."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("package", "module", "name"),
    [
        ("dowhy", "dowhy.causal_estimator", "bgmiv.adapters.dowhy.DoWhyEstimator"),
        ("sklearn", "sklearn.base", "bgmiv.adapters.sklearn.IVRegressor"),
    ],
)
def test_without_the_package_the_message_names_the_extra(package: str, module: str, name: str) -> None:
    code = (
        f"import sys; sys.modules['{package}'] = sys.modules['{module}'] = None\n"
        f"import {name.rpartition('.')[0]} as adapter\n"
        f"try:\n    adapter.{name.rpartition('.')[2]}(None)\n"
        "except adapter.MissingExtraError as error:\n    print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pybgmiv[{package}]" in shown.stdout
