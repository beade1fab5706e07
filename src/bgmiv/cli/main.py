"""The entry point of the ``bgmiv`` command."""

from __future__ import annotations

import os

from bgmiv.executors import THREAD_VARIABLES

# One thread is cheaper for networks this small and bitwise repeatable, with --workers 0 as in worker processes; JAX and
# the linear algebra libraries read these when they are imported.
os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1") | os.environ)

from collections.abc import Callable
from typing import Annotated

from typer import Exit, Option, Typer

from bgmiv._version import VERSION
from bgmiv.cli import fit, saved
from bgmiv.cli.bench import gc, merge, plans, report, run, show, status
from bgmiv.cli.demo import EMPIRICAL, demo, empirical_command, mnist
from bgmiv.cli.shared import Commands, echo

__all__ = ["app", "main"]

app = Typer(
    name="bgmiv",
    cls=Commands,
    help="Instrumental-variable analysis by Bayesian generative modelling (BGM-IV).",
    epilog="Example: bgmiv data card; then bgmiv fit card.csv --formula '...' --out card-fit --report card.html\n\n"
    "Exit codes: 0 fine; 1 bad data or a bad model folder; 2 bad usage; 3 the fit failed its held-out checks; "
    "130 Ctrl-C.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_SAVED = "Exit codes: 0 fine; 1 bad data or a bad model folder; 2 bad usage; 3 the fit failed its held-out checks."
_EPILOGS: dict[Callable[..., None], str] = {
    fit.fit: "Example: bgmiv fit card.csv --formula 'lwage ~ exper + \\[educ ~ nearc4]' --out card-fit "
    "--report card.html\n\n"
    "Or by names: bgmiv fit card.csv --outcome lwage --treatment educ --instruments nearc4 --covariates exper,black "
    "--out fit\n\n"
    "Exit codes: 0 fine; 1 bad data; 2 bad usage; 3 the fit failed its held-out checks (files are written); "
    "130 Ctrl-C.",
    saved.predict: f"Example: bgmiv predict card-fit new.csv --treatment 16 --out predicted.csv\n\n{_SAVED}",
    saved.effect: f"Example: bgmiv effect card-fit --t0 12 --t1 16 --by black\n\n{_SAVED}",
    saved.diagnose: f"Example: bgmiv diagnose card-fit\n\n{_SAVED}",
    saved.report: f"Example: bgmiv report card-fit --out card.html --open\n\n{_SAVED}",
    fit.compare: "Example: bgmiv compare card.csv --formula 'lwage ~ exper + \\[educ ~ nearc4]' --methods tsls,bgm-iv"
    "\n\nExit codes: 0 fine; 1 bad data; 2 bad usage; 130 Ctrl-C.",
    demo: "Example: bgmiv demo --n 1000 --rho 0.5 --out out/demo",
}
for _command, _epilog in _EPILOGS.items():
    app.command(_command.__name__, epilog=_epilog)(_command)

_bench = Typer(help="Benchmarks on designs with a known truth: run, store and report fits.", no_args_is_help=True)
for _command in (run, plans, status, show, report, gc, merge):
    _bench.command()(_command)
app.add_typer(_bench, name="bench")

_data = Typer(help="Data sets: real ones as CSV files, and the images of MNIST.", no_args_is_help=True)
for _name in EMPIRICAL:
    _data.command(_name, epilog=f"Example: bgmiv data {_name} --out {_name}.csv")(empirical_command(_name))
_data.command(epilog="Example: bgmiv data mnist")(mnist)
app.add_typer(_data, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        echo(f"bgmiv {VERSION}")
        raise Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    app()
