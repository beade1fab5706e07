from __future__ import annotations

import os
import subprocess
import sys

from typer.testing import CliRunner

import bgmiv
from bgmiv.cli.main import app

HELP = """
import sys
sys.argv = ["bgmiv", "--help"]
from bgmiv.cli.main import main
try:
    main()
except SystemExit as stop:
    assert stop.code == 0
    slow = {"jax", "matplotlib", "pandas", "linearmodels", "scipy"} & set(sys.modules)
    assert not slow, slow
"""


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"bgmiv {bgmiv.__version__}\n"


def test_help_loads_nothing_slow() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
    assert "bench" in done.stdout


def test_one_thread_is_set_before_anything_reads_it() -> None:
    code = (
        "import os; from bgmiv.cli import main; import sys; assert not {'jax', 'numpy'} & set(sys.modules); "
        "from bgmiv.executors import THREAD_VARIABLES; print({os.environ[name] for name in THREAD_VARIABLES})"
    )
    names = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "{'1'}\n"
