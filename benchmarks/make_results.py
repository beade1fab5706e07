"""Write RESULTS.md and its figures from the measured rows in results/; every number in it comes from a row.

python benchmarks/make_results.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bgmiv.bench import Row, RowStore
from bgmiv.bench.summary import summarise
from bgmiv.report.bench_page import bench_report, report_files
from bgmiv.report.files import write_all

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


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))


def cost(rows: Sequence[Row]) -> str:
    """CPU-seconds beside those of public code."""
    lines = []
    for cell in summarise([row for row in rows if row.status == "ok"]):
        public = PUBLIC_CPU_SECONDS.get((cell.method, cell.design, cell.n))
        if public is not None:
            ours = cell.cpu_seconds.mean
            names = (cell.method, cell.design, str(cell.n), cell.preset, str(cell.fits))
            lines.append((*names, f"{ours:.1f}", f"{public:.0f}", f"{public / ours:.1f}"))
    return markdown_table(
        ("method", "design", "n", "preset", "fits", "CPU-seconds", "public code", "times cheaper"), lines
    )


def seed_by_seed(rows: Sequence[Row]) -> str:
    """A line a cell with every seed's error in order."""
    lines = []
    for cell in summarise([row for row in rows if row.status == "ok" and row.design in ("demand", "vector-proxy")]):
        own = [row for row in rows if row.spec.cell == (cell.design, cell.n, cell.rho, cell.method, cell.preset)]
        errors = [f"{row.seed}: {row.structural_mse / 1e4:.3f}" for row in own if row.structural_mse is not None]
        lines.append((cell.design, str(cell.n), f"{cell.rho:g}", cell.method, cell.preset, ", ".join(errors)))
    return markdown_table(("design", "n", "rho", "method", "preset", "seed: MSE / 1e4"), lines)


def main() -> None:
    """Write RESULTS.md and figures/."""
    store = RowStore(HERE / "results")
    rows = store.rows()
    files = report_files(bench_report(rows, store.plans()))
    text = files["report.md"].decode().split("\n", 1)[1]
    parts = [
        "# Measured results",
        f"Generated from the {len(rows)} rows in `results/` by `make results`. The constant predictor scores 3.26 on "
        "the grids of the demand family. [README.md](README.md) says how the rows were made.",
        text.strip(),
        "## Seed by seed",
        seed_by_seed(rows),
        "## Cost against public code",
        "A whole fit and its grid prediction on one thread. Rows without the compilation cache pay for their own "
        "compilation (see Runtime). The public code was measured in another session, not side by side; our rows were "
        "mostly made on a busy machine.",
        cost(rows),
    ]
    figures = {
        name: content for name, content in files.items() if name.startswith("figures/") and name.endswith(".png")
    }
    for old in (HERE / "figures").glob("*.png"):
        old.unlink()
    write_all(HERE, {**figures, "RESULTS.md": ("\n\n".join(parts) + "\n").encode()})


if __name__ == "__main__":
    main()
