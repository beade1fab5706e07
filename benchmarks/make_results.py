"""Write RESULTS.md, and tables and figures of docs/reproduction.md, from the rows in results/.

python benchmarks/make_results.py

Every design in detail, with its figures, goes to out/results/DETAILS.md. Every number comes from a row. Files are
written whole, one after another: after a kill each is old or new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from bgmiv._io import safe_name, write_whole
from bgmiv.bench import RowStore, load_plan
from bgmiv.bench.show import read_rows
from report.comparisons import plan_table
from report.exhibits import paper_exhibits
from report.figures import Picture, figure_bytes
from report.paper import agreement_table, filled_table
from report.results import Section, bench_report, paper_sections, to_text, verdict_table
from report.tables import Table, to_markdown

HERE = Path(__file__).parent
REPRODUCTION = HERE.parent / "docs" / "reproduction.md"
OUT = HERE.parent / "out" / "results"

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
STUDIES = ("confounded", "semisynthetic", "published")


def seed_by_seed(frame: pd.DataFrame) -> Table:
    """A line a cell with every seed's error in order."""
    own = frame[frame["ok"] & frame["design"].isin(["demand", "vector-proxy", "mnist", "mnist-hd"])]
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


def put_between(text: str, name: str, content: str) -> str:
    """The text with what stands between the comments `name` and `/name` replaced; both must be there once."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    if text.count(start) != 1 or text.count(end) != 1:
        raise SystemExit(f"{REPRODUCTION} must have {start.strip()} and {end.strip()} once each, on lines of their own")
    before, rest = text.split(start)
    return f"{before}{start}\n{content.strip()}\n\n{end}{rest.split(end)[1]}"


def image_curve() -> str:
    """The learning curve of a short fit of the paper's image modules, if it has been run."""
    path = HERE / "image_curve.json"
    if not path.exists():
        return "It has not been run."
    found = json.loads(path.read_text())
    picture = "![Losses by step](../benchmarks/figures/study-image-curve.png)"
    error, share = found["structural_mse_1e4"], found["share"]
    said = (
        f"n = {found['n']}, rho = 0.5, seed 1, {share:g} of the paper's iterations, epochs and MAP steps: structural "
        f"MSE / 1e4 of {error:.2f} at the end. The warm start's losses are squared errors, those of the alternating "
        "updates negative log densities of scaled data: the second do not go on where the first end."
    )
    return f"{picture}\n\n{said}"


def results(frame: pd.DataFrame, n_rows: int, others: list[Table]) -> str:
    """RESULTS.md: how much there is, the paper's designs, noisy data, and verdicts."""
    judged = verdict_table(frame)
    parts = [
        "# Measured results",
        f"Generated from the {n_rows} rows in `results/` by `make results`. The paper's tables and figures, printed "
        "values beside ours, are on the [reproduction page](../docs/reproduction.md); every design with box plots, "
        "errors inside and outside the support, average effects, times, versions and seeds is in "
        "`out/results/DETAILS.md`, which the same command writes; [README.md](README.md) says how rows are made. The "
        "constant predictor scores 3.26 on the grids of the demand family.",
        "## The paper's designs",
        to_markdown(agreement_table(frame)),
        "## Noisy data, and other designs",
        *map(to_markdown, others),
        "## Verdicts",
        *([to_markdown(judged)] if judged else []),
        "## How much of the paper is here",
        to_markdown(filled_table(frame)),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write_pictures(sections: Iterable[Section], folder: Path) -> set[str]:
    """Write the figures of some sections and give their names."""
    pictures = [part for section in sections for part in section.parts if isinstance(part, Picture)]
    for picture in pictures:
        write_whole(folder / f"{safe_name(picture.name)}.png", figure_bytes(picture.figure))
    return {f"{safe_name(picture.name)}.png" for picture in pictures}


def main() -> None:
    """Write it all."""
    rows = RowStore(HERE / "results").rows()
    every = read_rows(rows)
    frame = every[every["current"]]
    paper = paper_sections(frame, [exhibit.plan for exhibit in paper_exhibits()])
    plans = [load_plan("noisy"), *(load_plan(HERE / "plans" / f"{name}.toml") for name in STUDIES)]
    shown_before = {section.title for section in paper}
    details = [section for section in bench_report(rows, plans).sections if section.title not in shown_before]
    busy = (
        "A whole fit and its grid prediction on one thread. Rows without the compilation cache pay for their own "
        "compilation (see Runtime). The public code was measured in another session, not side by side; our rows were "
        "mostly made on a busy machine."
    )
    details += [
        Section("Seed by seed", (seed_by_seed(every),)),
        Section("Cost against public code", (busy, cost(every))),
    ]
    names = write_pictures(paper, HERE / "figures")
    write_pictures(details, OUT / "figures")
    head = "# Every design in detail\n\nGenerated with benchmarks/RESULTS.md, which is what to read first.\n\n"
    write_whole(OUT / "DETAILS.md", (head + to_text(details)).encode())
    others = [table for plan in plans if (table := plan_table(frame, plan))]
    write_whole(HERE / "RESULTS.md", results(frame, len(rows), others).encode())
    page = REPRODUCTION.read_text()
    for exhibit, section in zip(paper_exhibits(), paper[1:], strict=True):
        text = to_text([Section("", section.parts)], "../benchmarks/figures").split("\n", 1)[1]
        page = put_between(page, exhibit.name, text)
    page = put_between(page, "filled", to_markdown(filled_table(frame)))
    page = put_between(page, "image-curve", image_curve())
    write_whole(REPRODUCTION, page.encode())
    # Last, so that a kill leaves no page without its pictures.
    for old in (HERE / "figures").glob("*.png"):
        if old.name not in names and not old.name.startswith("study-"):
            old.unlink()


if __name__ == "__main__":
    main()
