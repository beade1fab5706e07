"""The entry point of the ``bgmiv`` command."""

from __future__ import annotations

import os

from bgmiv.executors import THREAD_VARIABLES

# One thread is cheaper for networks this small and bitwise repeatable, with --workers 0 as in worker processes; JAX and
# the linear algebra libraries read these when they are imported.
os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1") | os.environ)

from typing import Annotated

import typer

from bgmiv._version import VERSION
from bgmiv.cli import fit, saved
from bgmiv.cli.bench import gc, merge, plans, report, run, show, status
from bgmiv.cli.demo import EMPIRICAL, demo, empirical_command, mnist
from bgmiv.cli.output import Commands

__all__ = ["app", "main"]

_EPILOG = """Example: bgmiv data card; then bgmiv fit card.csv --formula '...' --out card-fit --report card.html

Exit codes: 0 fine; 1 bad data or a bad model folder; 2 bad usage; 3 the fit failed its held-out checks; 130 Ctrl-C."""

app = typer.Typer(
    name="bgmiv",
    cls=Commands,
    help="Instrumental-variable analysis by Bayesian generative modelling (BGM-IV).",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("fit", epilog=fit.EPILOG)(fit.fit)
for _verb in (saved.predict, saved.effect, saved.diagnose, saved.report):
    app.command(_verb.__name__, epilog=saved.EPILOGS[_verb.__name__])(_verb)
app.command("compare", epilog=fit.COMPARE_EPILOG)(fit.compare)
app.command("demo", epilog="Example: bgmiv demo --n 1000 --rho 0.5 --out out/demo")(demo)

_bench = typer.Typer(help="Benchmarks on designs with a known truth: run, store and report fits.", no_args_is_help=True)
for _command in (run, plans, status, show, report, gc, merge):
    _bench.command()(_command)
app.add_typer(_bench, name="bench")

_data = typer.Typer(help="Data sets: real ones as CSV files, and the images of MNIST.", no_args_is_help=True)
for _name in EMPIRICAL:
    _data.command(_name, epilog=f"Example: bgmiv data {_name} --out {_name}.csv")(empirical_command(_name))
_data.command(epilog="Example: bgmiv data mnist")(mnist)
app.add_typer(_data, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bgmiv {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    app()
