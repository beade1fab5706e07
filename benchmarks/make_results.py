"""Write RESULTS.md and its figures from the measured rows in results/; every number in it comes from a row.

python benchmarks/make_results.py
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from bgmiv._io import write_whole
from bgmiv.bench import RowStore
from bgmiv.bench.report import bench_report, report_files
from bgmiv.bench.report.frame import read_rows
from bgmiv.bench.report.tables import Table, to_markdown

HERE = Path(__file__).parent

# CPU-seconds of public code for one whole fit, measured in another session on the same kind of machine (two cores, no
# GPU): the authors' TensorFlow code with 1000 Monte Carlo draws, and the DFIV study's PyTorch and NumPy code.
PUBLIC_CPU_SECONDS = {
    ("bgm-iv", "demand", 1000): 928.0,
    ("bgm-iv", "vector-proxy", 1000): 1142.0,
    ("bgm-iv", "vector-proxy", 5000): 1700.0,
    ("dfiv", "demand", 1000): 12.0,
    ("dfiv", "demand", 5000): 28.0,
    ("deepiv", "demand", 1000): 25.0,
    ("deepiv", "demand", 5000): 127.0,
    ("kiv", "demand", 1000): 20.0,
    ("kiv", "demand", 5000): 165.0,
}


CELL = ["design", "n", "rho", "method", "preset"]


def seed_by_seed(frame: pd.DataFrame) -> Table:
    """A line a cell with every seed's error in order."""
    own = frame[frame["ok"] & frame["design"].isin(["demand", "vector-proxy"])]
    texts = (own["seed"].astype(str) + ": " + own["mse"].map("{:.3f}".format)).groupby(
        [own[name] for name in CELL], sort=False
    )
    lines = texts.agg(", ".join).rename("seed: MSE / 1e4").reset_index().astype(str)
    return Table("seeds", "Every seed's error, older rows included", lines, lines, tuple(CELL))


def cost(frame: pd.DataFrame) -> Table:
    """CPU-seconds beside those of public code."""
    cells = frame[frame["ok"]].groupby(CELL, sort=False)["cpu_seconds"].agg(fits="count", seconds="mean").reset_index()
    lines = pd.DataFrame(
        {
            **{name: str(getattr(cell, name)) for name in CELL},
            "fits": str(cell.fits),
            "CPU-seconds": f"{cell.seconds:.1f}",
            "public code": f"{public:.0f}",
            "times cheaper": f"{public / cell.seconds:.1f}",
        }
        for cell in cells.itertuples(index=False)
        if (public := PUBLIC_CPU_SECONDS.get((cell.method, cell.design, cell.n)))
    )
    return Table("cost", "CPU-seconds of one fit", lines, lines, ("design", "method", "preset"))


def main() -> None:
    """Write RESULTS.md and figures/."""
    store = RowStore(HERE / "results")
    rows = store.rows()
    frame = read_rows(rows)
    files = report_files(bench_report(rows, store.plans()))
    text = files["report.md"].decode().split("\n", 1)[1]
    parts = [
        "# Measured results",
        f"Generated from the {len(rows)} rows in `results/` by `make results`. The constant predictor scores 3.26 on "
        "the grids of the demand family. [README.md](README.md) says how the rows were made.",
        text.strip(),
        "## Seed by seed",
        to_markdown(seed_by_seed(frame)).strip(),
        "## Cost against public code",
        "A whole fit and its grid prediction on one thread. Rows without the compilation cache pay for their own "
        "compilation (see Runtime). The public code was measured in another session, not side by side; our rows were "
        "mostly made on a busy machine.",
        to_markdown(cost(frame)).strip(),
    ]
    for old in (HERE / "figures").glob("*.png"):
        old.unlink()
    for name, content in files.items():
        if name.startswith("figures/") and name.endswith(".png"):
            write_whole(HERE / name, content)
    write_whole(HERE / "RESULTS.md", ("\n\n".join(parts) + "\n").encode())


if __name__ == "__main__":
    main()
