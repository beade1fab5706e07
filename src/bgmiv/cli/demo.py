"""What to try the commands on: ``bgmiv demo``, a simulated market, and ``bgmiv data``, real data sets."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Exit, Option

from bgmiv._io import write_whole
from bgmiv.cli.shared import (
    AsJson,
    Overwrite,
    Preset,
    Seed,
    counted,
    echo,
    make_model,
    naming_option,
    print_json,
    print_table,
    usable_folder,
    writable_file,
)
from bgmiv.errors import BGMIVError, BGMIVWarning
from bgmiv.executors import LocalPool, available_cores
from bgmiv.registry import NO_INSTRUMENT, method_label

if TYPE_CHECKING:
    from bgmiv.analysis.analysis import Analysis
    from bgmiv.bench.plan import RunSpec
    from bgmiv.bench.store import Row

__all__ = [
    "EMPIRICAL", "DemoResult", "demo", "demo_files", "empirical_command", "error_texts", "mnist",
    "run_spec", "with_truth",
]  # fmt: skip

# The quickest first, so that both long fits run side by side; tables end with it.
_METHODS = ("tsls", "bgm-iv", "bgm-iv-noiv")


class DemoResult(NamedTuple):
    """A fit's row and its analysis; a fit that failed has none."""

    row: Row
    analysis: Analysis | None = None


def run_spec(spec: RunSpec) -> DemoResult:
    """Fit and evaluate; a function of this module so that worker processes can import it."""
    from bgmiv.bench.evaluate import evaluate

    row, fitted, data = evaluate(spec)
    if fitted is None:
        return DemoResult(row)
    # Two fits side by side would draw over each other.
    model = make_model(spec.method, spec.preset, spec.seed, {"progress": False})
    model._keep(fitted, spec.seed, None, "", 0, {})
    with warnings.catch_warnings():
        # The page says what there is to warn of.
        warnings.simplefilter("ignore", BGMIVWarning)
        model._attach(data)
        analysis = model.analysis(
            # Of the version without the instrument the page shows the average curve alone.
            by=() if spec.method.endswith(NO_INSTRUMENT) else "time",
            title="What would demand be if we set the price?",
            source="a simulated market",
            units="flights",
            # The no-instrument version is one of the demo's own fits.
            no_instrument=False,
        )
    return DemoResult(row, analysis)


def demo(
    n: Annotated[int, Option(help="Rows to simulate.", min=20)] = 1000,
    rho: Annotated[
        float, Option(help="Confounding: correlation of the price shock with demand.", min=-1.0, max=1.0)
    ] = 0.9,
    seed: Seed = 0,
    preset: Preset = "default",
    out: Annotated[Path, Option(help="Folder for the page and the results.")] = Path("out/demo"),
) -> None:
    """Fit a simulated market, and write a page with the results.

    It simulates airline demand with endogenous prices and compares BGM-IV with the same model without the instrument,
    with linear two-stage least squares and with the truth: report.html is what an analyst would have with the truth
    drawn in, results.json has the errors.
    """
    usable_folder(out, "--out")

    from bgmiv.bench.plan import Sweep

    with naming_option("--rho"):
        specs = Sweep(["demand-confounded"], [n], [rho], _METHODS, [preset], seed=seed).specs()
    out.mkdir(parents=True, exist_ok=True)
    echo(f"Confounded airline demand: n = {n}, rho = {rho:g}, seed {seed}, preset {preset}", err=True)
    results = _fit(specs)
    print_table(
        "Mean squared error of the demand curve",
        ("method", "error", "inside", "outside", "time"),
        error_texts([result.row for result in results]),
        caption="inside / outside: at prices that are / are not observed in that season",
    )
    for name, content in demo_files(results).items():
        write_whole(out / name, content)
        echo(f"wrote {out / name}")
    if any(result.row.status != "ok" for result in results):
        raise Exit(1)


def _fit(specs: Sequence[RunSpec]) -> list[DemoResult]:
    """Fit in as many processes as there are cores, at most two: 2SLS is done in a moment."""
    results: dict[RunSpec, DemoResult] = {}
    for outcome in counted(LocalPool(min(2, available_cores())).map(run_spec, specs), len(specs)):
        label = method_label(outcome.item.method)
        if outcome.lost:
            raise BGMIVError(f"{label}: {outcome.lost}")
        row = outcome.result.row
        echo(f"  {label}: {f'done in {row.seconds:.1f} s' if row.status == 'ok' else f'failed: {row.error}'}", err=True)
        results[row.spec] = outcome.result
    return [results[spec] for spec in (*specs[1:], specs[0])]


def error_texts(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The table of errors as texts, a line for each method."""
    lines = []
    for row in rows:
        errors = (row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)
        texts = ["failed" if error is None else f"{error:,.0f}" for error in errors]
        lines.append((method_label(row.method), *texts, f"{row.seconds:.1f} s"))
    return lines


def demo_files(results: Sequence[DemoResult]) -> dict[str, bytes]:
    """The files that the demo writes, by name; no page if every fit failed."""
    from bgmiv.analysis.page import report_page

    rows = [result.row for result in results]
    record = json.dumps({"rows": [asdict(row) for row in rows]}, indent=2, allow_nan=False)
    files = {"results.json": f"{record}\n".encode()}
    analyses = {result.row.method: result.analysis for result in results if result.analysis}
    shown = analyses.get("bgm-iv", analyses.get("tsls"))
    if shown is not None:
        known = {row.name for row in shown.methods}
        others = (analysis.methods[0] for analysis in analyses.values() if analysis.methods[0].name not in known)
        shown = replace(shown, methods=(shown.methods[0], *others, *shown.methods[1:]))
        files["report.html"] = report_page(with_truth(shown, rows[0])).encode()
    return files


def with_truth(analysis: Analysis, row: Row) -> Analysis:
    """The analysis with the true average curve and effect as its last method."""
    import numpy as np

    from bgmiv.analysis.analysis import MethodRow
    from bgmiv.designs import make_design
    from bgmiv.designs.demand import demand
    from bgmiv.intervals import NO_INTERVAL, Interval

    covariates = make_design(row.design).sample(row.n, row.rho, row.seed).covariates.T
    first = analysis.effects[0]
    prices = (first.t0, first.t1, *analysis.curves[0].treatment)
    before, after, *curve = (float(np.mean(demand(price, *covariates))) for price in prices)
    effect = Interval(after - before, np.nan, np.nan, analysis.level, {}, method=NO_INTERVAL)
    truth = MethodRow("the truth", effect, tuple(curve), "truth")
    return replace(analysis, methods=(*analysis.methods, truth))


EMPIRICAL = {
    "card": "Log wages of young men, their schooling, and whether a college was near (Card 1995).",
    "mroz": "Log wages of working married women, their schooling and that of their parents (Mroz 1987).",
    "401ksubs": "Net financial assets, participation in a 401(k) plan and eligibility for one (Abadie 2003).",
    "bwght": "Birth weights, cigarettes smoked and their price: an instrument that is too weak.",
    "meps": "Drug expenses of the elderly, insurance, and the share of benefits in income.",
    "cigarettes": "Packs of cigarettes sold in 48 states in 1995, their price and taxes (Stock and Watson).",
    "fertility": "Weeks worked by mothers, a third child, and the sex of the first two (Angrist and Evans 1998).",
}
"""The real data sets, each with its content."""


def mnist(
    path: Annotated[
        Path | None, Option(help="Folder with the four files of MNIST, as they are or .gz: check and copy them.")
    ] = None,
) -> None:
    """Fetch the images of MNIST for the designs mnist and mnist-hd, check them, and keep them.

    The environment variable BGMIV_MNIST names a folder to use instead; BGMIV_DATA_CACHE is where files are
    kept, instead of the user's cache.
    """
    from bgmiv.designs.mnist import store_mnist

    echo(f"MNIST, checked: {store_mnist(path)}")


def empirical_command(name: str) -> Callable[..., None]:
    """The command that writes one of the real data sets."""

    def write(
        out: Annotated[Path | None, Option(help="The CSV file; by default one of this name here.")] = None,
        overwrite: Overwrite = False,
        as_json: AsJson = False,
    ) -> None:
        target = writable_file(out or Path(f"{name}.csv"), "--out", overwrite=overwrite)

        import pandas as pd

        from bgmiv.designs.empirical import load_empirical

        data = load_empirical(name)
        # Booleans as readers of CSV expect them.
        table = pd.DataFrame(data.table).replace({True: "true", False: "false"})
        write_whole(target, table.to_csv(index=False, lineterminator="\n").encode())
        published = data.published
        if as_json:
            record = {"file": str(target), "rows": data.n_rows, "formula": data.formula, "source": data.source}
            print_json(record | {"published": None if published is None else published._asdict()})
            return
        echo(f"{data.n_rows} rows: {target}")
        echo(f"formula: {data.formula}")
        if published is not None:
            error = "" if published.standard_error is None else f" ({published.standard_error})"
            echo(f"published two-stage least squares: {published.coefficient}{error}, {published.reference}")

    write.__name__ = name
    write.__doc__ = f"{EMPIRICAL[name]} Writes a CSV file and prints the formula to use."
    return write
