"""``bgmiv report``: the analysis of a saved model as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bgmiv.cli.common import reported
from bgmiv.cli.output import print_json, writable_file
from bgmiv.cli.saved import Folder, open_model, stored_analysis

__all__ = ["EPILOG", "report"]

EPILOG = """Example: bgmiv report card-fit --out card.html --open

Exit codes: 0 fine; 1 a bad model folder; 2 bad usage."""


@reported
def report(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the analysis of a saved model as one self-contained HTML page, to be sent, printed or opened offline."""
    writable_file(out, "--out")
    analysis = stored_analysis(open_model(folder), folder)
    from bgmiv.show.page import write_report

    written = write_report(analysis, out)
    if as_json:
        print_json({"report": str(written), "bytes": written.stat().st_size})
    else:
        typer.echo(f"report: {written}")
    if show:
        import webbrowser

        webbrowser.open(written.absolute().as_uri())
