"""What to try the commands on: ``bgmiv demo``, a simulated market, and ``bgmiv data``, real data sets."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from bgmiv._io import write_whole
from bgmiv.cli.shared import (
    AsJson,
    Overwrite,
    Preset,
    Seed,
    echo,
    make_model,
    naming_option,
    print_json,
    print_table,
    usable_folder,
    writable_file,
)
from bgmiv.errors import BGMIVError, BGMIVWarning
from bgmiv.registry import method_label

if TYPE_CHECKING:
    from bgmiv.analysis.analysis import Analysis
    from bgmiv.bench.evaluate import StructuralError
    from bgmiv.data.ivdata import IVData
    from bgmiv.estimators.base import IVEstimator

__all__ = ["EMPIRICAL", "demo", "empirical_command", "mnist", "with_truth"]

# The page is about the first that can be fitted.
_METHODS = ("bgm-iv", "bgm-iv-noiv", "tsls")


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

    from bgmiv.analysis.page import report_page
    from bgmiv.bench.evaluate import structural_error
    from bgmiv.designs import make_design
    from bgmiv.effects import predict

    design = make_design("demand-confounded")
    with naming_option("--rho"):
        data = design.sample(n, rho, seed)
    grid = design.grid()
    echo(f"Confounded airline demand: n = {n}, rho = {rho:g}, seed {seed}, preset {preset}", err=True)
    models: dict[str, IVEstimator] = {}
    errors: dict[str, StructuralError] = {}
    with warnings.catch_warnings():
        # The page says what there is to warn of.
        warnings.simplefilter("ignore", BGMIVWarning)
        for method in _METHODS:
            label = method_label(method)
            try:
                model = make_model(method, preset, seed, {})._fit(data)
            except BGMIVError as error:
                echo(f"{label} failed: {error}", err=True)
                continue
            models[label] = model
            errors[label] = structural_error(predict(model.fitted_, grid.treatment, grid.covariates), grid)
        if not models:
            raise Exit(1)
        print_table(
            "Mean squared error of the demand curve",
            ("method", "error", "inside", "outside"),
            [(label, *(f"{error:,.0f}" for error in each)) for label, each in errors.items()],
            caption="inside / outside: at prices that are / are not observed in that season",
        )
        first, *others = models
        analysis = models[first].analysis(
            by="time",
            title="What would demand be if we set the price?",
            source="a simulated market",
            units="flights",
            # The no-instrument version is one of the demo's own fits.
            no_instrument=False,
            compare={label: models[label] for label in others},
        )
    record: dict[str, Any] = {"n": n, "rho": rho, "seed": seed, "preset": preset}
    record["errors"] = {label: each._asdict() for label, each in errors.items()}
    files = {"results.json": json.dumps(record, indent=2), "report.html": report_page(with_truth(analysis, data))}
    for name, content in files.items():
        write_whole(out / name, content.encode())
        echo(f"wrote {out / name}")
    if len(models) < len(_METHODS):
        raise Exit(1)


def with_truth(analysis: Analysis, data: IVData) -> Analysis:
    """The analysis with the true average curve and effect as its last method."""
    import numpy as np

    from bgmiv.analysis.analysis import MethodRow
    from bgmiv.designs.demand import demand
    from bgmiv.intervals import NO_INTERVAL, Interval

    first = analysis.effects[0]
    prices = (first.t0, first.t1, *analysis.curves[0].treatment)
    before, after, *curve = (float(np.mean(demand(price, *data.covariates.T))) for price in prices)
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
