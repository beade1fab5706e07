"""The same plan on a local Ray cluster of four node processes and in this process: are the rows equal?

    NPROC=1 python benchmarks/ray_nodes.py

Times apart, every field of every row must agree to the last digit; docs/bench.md quotes what it prints.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bgmiv.bench import InProcess, Plan, Row, RowStore, Sweep, identify, run_plan
from bgmiv.executors import Executor, RayCluster

NODES = 4
PLAN = Plan(
    "nodes",
    "small fits of methods with and without networks",
    (
        Sweep(["demand", "noisy-concave"], [300], [0.5], ["tsls", "kiv", "npiv"], repeats=3, seed=1),
        Sweep(["demand"], [300], [0.5], ["deepiv"], repeats=2, seed=1),
    ),
)


def node_of(item: Any) -> str:
    """The node that runs this, after a second in which the others get theirs."""
    import ray

    time.sleep(1.0)
    return str(ray.get_runtime_context().get_node_id())


def rows_by(executor: Executor, folder: Path) -> list[Row]:
    """The plan's rows by that executor, without what may differ."""
    store = RowStore(folder)
    for _ in run_plan([identify(spec) for spec in PLAN.specs], store, executor):
        pass
    return [replace(row, seconds=0.0, cpu_seconds=0.0, timestamp="", compilation_cache=False) for row in store.rows()]


def main() -> None:
    """Start the nodes, run both, compare."""
    # Four nodes start slowly on a busy machine.
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
    # Workers import this file and the package from where they are here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    from ray.cluster_utils import Cluster

    import ray_nodes  # by this name workers find it

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(NODES - 1):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    try:
        away = RayCluster(address=cluster.address)
        probes = away.map(ray_nodes.node_of, range(2 * NODES))
        used = {probe.result for probe in probes if not probe.lost}
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            there = rows_by(away, Path(folder) / "ray")
            seconds = time.perf_counter() - start
            here = rows_by(InProcess(), Path(folder) / "here")
    finally:
        cluster.shutdown()
    bad = sum(row.status != "ok" for row in there)
    print(f"{NODES} node processes, work on {len(used)} of them; {len(there)} fits in {seconds:.0f} s, {bad} failed")
    differing = [str(one.spec) for one, two in zip(there, here, strict=True) if one != two]
    print(f"rows that differ from those of the calling process: {len(differing)} {', '.join(differing)}")
    raise SystemExit(1 if differing or bad or len(used) < NODES else 0)


if __name__ == "__main__":
    main()
