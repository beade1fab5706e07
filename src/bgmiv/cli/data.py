"""`bgmiv data`: real data sets as CSV files, and the images of MNIST."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from bgmiv._io import write_whole
from bgmiv.cli.options import AsJson, echo, print_json, reported, writable_file

__all__ = ["EMPIRICAL", "empirical_command", "mnist"]

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


@reported
def mnist(
    path: Annotated[
        Path | None,
        typer.Option(
            help="Folder or tar archive with the four files of MNIST, as they are or .gz: check and copy them."
        ),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for data sets instead of the user's cache (also BGMIV_DATA_CACHE).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Fetch the images of MNIST for the designs mnist and mnist-hd, check them, and keep them.

    The environment variable BGMIV_MNIST names a folder or archive to use instead.
    """
    from bgmiv.designs.mnist import store_mnist

    folder = store_mnist(path, cache)
    if as_json:
        print_json({"folder": str(folder), "files": sorted(file.name for file in folder.iterdir())})
        return
    echo(f"MNIST, checked: {folder}")
    if cache is not None:
        echo(f"The designs find it there when the environment variable BGMIV_DATA_CACHE is {cache.absolute()}")


def empirical_command(name: str) -> Callable[..., None]:
    """The command that writes one of the real data sets."""

    @reported
    def write(
        out: Annotated[Path | None, typer.Option(help="The CSV file; by default one of this name here.")] = None,
        overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
        as_json: AsJson = False,
    ) -> None:
        target = writable_file(out or Path(f"{name}.csv"), "--out", overwrite=overwrite)

        import pandas as pd

        from bgmiv.designs.empirical import load_empirical

        found = load_empirical(name)
        # Booleans as readers of CSV expect them.
        table = pd.DataFrame(found.table).replace({True: "true", False: "false"})
        write_whole(target, table.to_csv(index=False, lineterminator="\n").encode())
        published = found.published
        if as_json:
            record = {"file": str(target), "rows": found.n_rows, "formula": found.formula, "source": found.source}
            print_json(record | {"published": None if published is None else published._asdict()})
            return
        echo(f"{found.n_rows} rows: {target}")
        echo(f"formula: {found.formula}")
        if published is not None:
            error = "" if published.standard_error is None else f" ({published.standard_error})"
            echo(f"published two-stage least squares: {published.coefficient}{error}, {published.reference}")

    write.__name__ = name
    write.__doc__ = f"{EMPIRICAL[name]} Writes a CSV file and prints the formula to use."
    return write
