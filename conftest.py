"""Settings that must be in place before JAX is imported anywhere."""

from __future__ import annotations

import ctypes
import gc
import os
from importlib.metadata import version
from pathlib import Path

# One thread: cheaper for networks this small, and bitwise repeatable.
for _name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
# Compiled programs are kept between test runs; most of a JAX test's time is compilation.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parent / ".pytest_cache" / "jax"))
# Small ones too: there are dozens of them for a fit, and every worker would compile them again.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# XLA's older code generator takes half the time of its newer one. Releases that do not know the flag end the process.
if version("jaxlib").startswith("0.10."):
    _flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_use_fusion_emitters" not in _flags:
        os.environ["XLA_FLAGS"] = f"{_flags} --xla_cpu_use_fusion_emitters=false".strip()

from collections.abc import Iterator  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# `make test` tries the same examples every time, however busy the machine is; `make fuzz` looks for new ones. Tests
# write the files of a temporary folder anew for each example.
_CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("fixed", derandomize=True, max_examples=100, deadline=10_000, suppress_health_check=_CHECKS)
settings.register_profile(
    "fuzz", max_examples=2000, deadline=10_000, derandomize=False, print_blob=True, suppress_health_check=_CHECKS
)
settings.load_profile("fixed")

# Tracing makes many objects and few cycles: looking for cycles after every 700 takes a sixth of a fit's time.
gc.set_threshold(50_000, 10, 10)

# A process may hold 65,530 memory maps on Linux; beyond that compilation crashes. A compiled program takes about twenty
# and 2 MB. A file of tests adds up to 0.7 GB, so that a worker stays below 2 GB.
_MAX_MAPS = 25_000
_MAX_BYTES = 1_000_000_000


def _many_programs() -> bool:
    maps, memory = Path("/proc/self/maps"), Path("/proc/self/statm")
    if not maps.exists():
        return False
    resident = int(memory.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident > _MAX_BYTES or maps.read_bytes().count(b"\n") > _MAX_MAPS


@pytest.fixture(autouse=True, scope="module")
def few_compiled_programs() -> Iterator[None]:
    """Forget compiled programs between modules before a worker has too many of them."""
    yield
    if _many_programs():
        jax.clear_caches()
        # The C library keeps the memory unless told otherwise.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


# Much is compiled in tests and little run: XLA's optimisations cost more than they give. Set here, because fixtures of
# the session are made before those of a module.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True, scope="module")
def optimised_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """A module whose fits are honest ones has XLA's optimisations by `OPTIMISED = True`."""
    if getattr(request.module, "OPTIMISED", False):
        jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


# Files that take more than ten seconds.
_LONGEST = (
    "test_robustness.py",
    "test_tutorials.py",
    "test_estimators.py",
    "test_estimator.py",
    "test_posterior.py",
    "test_network_check.py",
)

# Folders whose tests fit nothing, or next to nothing.
_QUICK = ("data", "likelihood", "nn", "persist", "preprocess", "designs")


def pytest_collection_finish() -> None:
    """Imported modules stay: the collector of garbage need not look at them again."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make quick` runs, and put the files that take longest first: no worker waits at the end."""
    tests = Path(__file__).resolve().parent / "tests"

    def place(item: pytest.Item) -> int:
        return 0 if item.path.name in _LONGEST else 2 if item.get_closest_marker("quick") else 1

    for item in items:
        folder = item.path.relative_to(tests).parts[0] if item.path.is_relative_to(tests) else ""
        if folder in _QUICK and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.quick)
    items.sort(key=place)
