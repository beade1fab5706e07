"""An unfinished fit on disk: what a crash or Ctrl-C leaves behind, and how the next fit goes on from it.

One file holds a checksum of the rest; the phase, the step, the history and a fingerprint of data, settings and seed;
and the leaves of the running phase's state. It is read once and replaced as a whole, so it is never half-written, and a
lock keeps a second process away from it.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from filelock import FileLock, Timeout
from jax import Array
from numpy.typing import NDArray
from safetensors.numpy import load, save

from bgmiv._io import check_writable, remove_strays, write_whole, writing
from bgmiv._version import versions
from bgmiv.errors import ConfigError, StoreError
from bgmiv.progress import HistoryRow

__all__ = ["Checkpoint", "Resumed", "fingerprint"]

_FILE, _LOCK = "unfinished-fit.checkpoint", "unfinished-fit.lock"


def fingerprint(*parts: Any) -> str:
    """A hash of arrays (their bytes), keys and settings (their text), and of the versions that decide the numbers."""
    digest = hashlib.sha256("".join(f"{name} {found}\0" for name, found in versions("jax", "numpy").items()).encode())
    for part in parts:
        if isinstance(part, Array) and jnp.issubdtype(part.dtype, jax.dtypes.prng_key):
            part = jax.random.key_data(part)
        if isinstance(part, np.ndarray | Array):
            array = np.ascontiguousarray(part)
            digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        else:
            digest.update(repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


class Resumed(NamedTuple):
    """Where a phase goes on: steps done, its state, and the history up to there."""

    step: int
    state: Any
    history: tuple[HistoryRow, ...]


class Checkpoint:
    """The unfinished fit kept in `folder`, for one fit at a time: a context that a whole fit leaves empty.

    Args:
        folder: made if absent.
        fingerprint: of the fit that wants to use it.
        every: seconds between two saves.

    Raises:
        ConfigError: on entry, if the folder holds another fit's state or another process uses it.
        StoreError: on entry, if the file there is damaged or nothing can be written there.
    """

    def __init__(self, folder: str | Path, fingerprint: str, every: float = 5.0) -> None:
        """Nothing is read or locked before the context is entered."""
        self._path = Path(folder) / _FILE
        self._fingerprint = fingerprint
        self._every = every
        self._saved_at = -float("inf")
        self._header: dict[str, Any] = {}
        self._leaves: dict[str, NDArray[Any]] = {}
        self._lock = FileLock(Path(folder).absolute() / _LOCK, timeout=0)

    def __enter__(self) -> Self:
        """Lock the folder and read what is there."""
        folder = self._path.parent
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire()
            except Timeout:
                raise ConfigError(
                    f"checkpoint folder '{folder}' is in use by another fit that is running. Wait for it, or choose "
                    "another folder."
                ) from None
        try:
            check_writable(folder)
            remove_strays(self._path, 0.0)
            self._header, self._leaves = self._read()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove the file if the fit is whole, and unlock the folder."""
        if kind is None:
            self._path.unlink(missing_ok=True)
        self._release()

    def _release(self) -> None:
        # Windows does not remove a file that is open.
        with suppress(OSError):
            os.unlink(self._lock.lock_file)
        self._lock.release()

    def _read(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        try:
            found = self._path.read_bytes()
        except FileNotFoundError:
            return {}, {}
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror or error}.") from error
        checksum, _, content = found.partition(b"\n")
        if checksum.decode("latin-1") != hashlib.sha256(content).hexdigest():
            raise StoreError(f"{self._path} is damaged (its checksum does not match); delete it to start the fit over.")
        text, _, arrays = content.partition(b"\n")
        header = json.loads(text)
        if header["fingerprint"] != self._fingerprint:
            raise ConfigError(
                f"checkpoint folder '{self._path.parent}' holds an unfinished fit with other data, settings or seed, "
                f"or by another version of bgmiv; finish that one, delete {self._path.name}, or choose another folder."
            )
        return header, load(arrays)

    def passed(self, phase: str) -> tuple[HistoryRow, ...] | None:
        """The history of a phase that the saved fit has left behind, or None."""
        if phase not in self._header.get("passed", []):
            return None
        return tuple(row for row in self._history() if row.phase == phase)

    def resume(self, phase: str, state: Any) -> Resumed:
        """The saved state of this phase, or the given fresh one."""
        if self._header.get("phase") != phase:
            return Resumed(0, state, ())
        leaves, tree = jax.tree.flatten(state)
        history = tuple(row for row in self._history() if row.phase == phase)
        restored = jax.device_put(jax.tree.unflatten(tree, [self._leaves[str(i)] for i in range(len(leaves))]))
        return Resumed(self._header["step"], restored, history)

    def _history(self) -> list[HistoryRow]:
        return [HistoryRow(*row) for row in self._header.get("history", [])]

    def save(self, phase: str, step: int, state: Any, history: list[HistoryRow], *, last: bool) -> None:
        """Keep the state if the last save is long enough ago; always at a phase's end.

        Raises:
            StoreError: it cannot be written; the state saved before is still there.
        """
        if not last and monotonic() - self._saved_at < self._every:
            return
        passed = self._header.get("passed", [])
        earlier = [row for row in self._history() if row.phase != phase]
        self._header = {
            "fingerprint": self._fingerprint,
            "phase": phase,
            "step": step,
            "passed": [*passed, phase] if last and phase not in passed else passed,
            "history": [*earlier, *history],
        }
        leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        content = json.dumps(self._header).encode() + b"\n" + save(leaves)
        checked = hashlib.sha256(content).hexdigest().encode() + b"\n" + content
        write_whole(self._path, checked, "Make room and call fit again: it goes on from the state saved before.")
        self._saved_at = monotonic()
