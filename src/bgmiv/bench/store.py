"""Result rows on disk: one checked JSON file a fit, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from bgmiv.bench.plan import RunSpec, canonical_json
from bgmiv.errors import StoreError

__all__ = ["Row", "RowStore"]

_FORMAT = 1
_ROW_FILE = re.compile(r"[0-9a-f]{16}\.json")


@dataclass(frozen=True)
class Row:
    """What one fit gave.

    Args:
        design, n, rho, method, preset, seed: the specification (:class:`~bgmiv.bench.plan.RunSpec`).
        status: ``"ok"`` or ``"failed"``.
        error: why it failed, empty when it did not.
        structural_mse, structural_mse_in_support, structural_mse_outside: mean squared structural error over
            the grid and its parts; None when the fit failed.
        seconds, cpu_seconds: wall clock and processor time of fit and grid prediction together.
        compile_included: whether the times include the compilation this fit needed (always true here; a
            fit whose programs were compiled before in this process or are in the cache needs little).
        versions: of this package, Python and the libraries that decide the numbers.
        timestamp: when the fit ended, UTC, ISO 8601.
    """

    design: str
    n: int
    rho: float
    method: str
    preset: str
    seed: int
    status: Literal["ok", "failed"]
    error: str
    structural_mse: float | None
    structural_mse_in_support: float | None
    structural_mse_outside: float | None
    seconds: float
    cpu_seconds: float
    compile_included: bool
    versions: Mapping[str, str] = field(hash=False)
    timestamp: str

    @property
    def spec(self) -> RunSpec:
        """The specification this row answers."""
        return RunSpec(self.design, self.n, self.rho, self.method, self.preset, self.seed)


@dataclass(frozen=True)
class RowStore:
    """A folder of rows, named by the specification's :attr:`~bgmiv.bench.plan.RunSpec.run_id`.

    A row is written to a temporary file, flushed to the disk and moved into place, so that a crash leaves
    either the whole row or none. Each file carries a checksum of its row.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"{self.folder} is a file; a store is a folder: choose another path")

    def path(self, spec: RunSpec) -> Path:
        """The file of that specification's row, whether it exists or not."""
        return self.folder / f"{spec.run_id}.json"

    def write(self, row: Row) -> Path:
        """Put the row on disk, replacing an earlier row of the same specification."""
        content = asdict(row)
        text = json.dumps({"format": _FORMAT, "row": content, "sha256": _checksum(content)}, indent=1, allow_nan=False)
        path = self.path(row.spec)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_whole(path, text)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
        return path

    def read(self, spec: RunSpec) -> Row | None:
        """The row of that specification, None if there is none yet.

        Raises:
            StoreError: the file is damaged.
        """
        path = self.path(spec)
        return _read(path) if path.exists() else None

    def rows(self) -> tuple[Row, ...]:
        """Every row, ordered by specification.

        Raises:
            StoreError: the folder does not exist, or a file is damaged.
        """
        if not self.folder.is_dir():
            raise StoreError(f"{self.folder} is not a folder; name the folder given to --store")
        found = [_read(path) for path in self.folder.iterdir() if _ROW_FILE.fullmatch(path.name)]
        return tuple(sorted(found, key=lambda row: tuple(asdict(row.spec).values())))


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # The move itself is durable only once the folder is flushed; Windows cannot open folders.
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read(path: Path) -> Row:
    damaged = f"{path} is damaged; delete it and run the bench again to make its row anew"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise StoreError(f"{damaged} (not valid JSON)") from error
    if not isinstance(stored, dict) or not isinstance(stored.get("row"), dict):
        raise StoreError(f"{damaged} (no row in it)")
    if stored.get("format") != _FORMAT:
        raise StoreError(f"{path} has format {stored.get('format')!r}; this version reads format {_FORMAT}")
    content = stored["row"]
    if stored.get("sha256") != _checksum(content):
        raise StoreError(f"{damaged} (its checksum does not match)")
    if set(content) != {item.name for item in fields(Row)}:
        raise StoreError(f"{damaged} (its fields are not those of a row)")
    row = Row(**content)
    if row.spec.run_id != path.stem:
        raise StoreError(f"{damaged} (its name does not match its row)")
    return row
