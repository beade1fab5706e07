"""Without DoWhy the adapter says what is missing; `isolated/test_dowhy_itself.py` tries it with the real one."""

from __future__ import annotations

import subprocess
import sys


def test_without_dowhy_the_message_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['dowhy'] = sys.modules['dowhy.causal_estimator'] = None\n"
        "from bgmiv.adapters.dowhy import DoWhyEstimator\n"
        "from bgmiv.errors import MissingExtraError\n"
        "try:\n    DoWhyEstimator(None)\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "bgmiv[dowhy]" in shown.stdout
