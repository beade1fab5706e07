"""Settings that must be in place before JAX is imported anywhere."""

from __future__ import annotations

import os
from pathlib import Path

# One thread: cheaper for networks this small, and bitwise repeatable.
for _name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
# Compiled programs are kept between test runs; most of a JAX test's time is compilation.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "jax"))
