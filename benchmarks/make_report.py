"""Write every table and figure of a store, and one page with all of them, the paper's printed values beside ours.

python benchmarks/make_report.py rows --out report [--plan paper/table-1] [--baseline kiv]

Tables are Markdown, CSV and LaTeX, figures PNG and PDF; index.html needs nothing else. What is missing from the plans
that were run into the store, or from those named, is said.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bgmiv._io import write_whole
from bgmiv.bench import RowStore, load_plan
from report.results import bench_report, report_files


def main(arguments: list[str] | None = None) -> None:
    """Read the store and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plan", action="append", default=[], help="say what is missing from this one")
    parser.add_argument("--baseline", action="append", default=[], help="compare BGM-IV with these methods only")
    asked = parser.parse_args(arguments)
    store = RowStore(asked.store)
    plans = tuple(map(load_plan, asked.plan)) or store.plans()
    for name, content in report_files(bench_report(store.rows(), plans, asked.baseline)).items():
        write_whole(asked.out / name, content)
        print(f"wrote {asked.out / name}")


if __name__ == "__main__":
    main()
