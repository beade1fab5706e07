"""An unfinished fit on disk: what a crash or Ctrl-C leaves behind, and how the next fit goes on from it.

One safetensors file holds the leaves of the running phase's state; its header holds the phase, the step, the history
and a fingerprint of data, settings and seed. It is replaced as a whole, so it is never half-written.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bgmiv.errors import ConfigError, StoreError
from bgmiv.progress import HistoryRow

__all__ = ["Checkpoint", "Resumed", "fingerprint"]

_FILE = "unfinished-fit.safetensors"


def fingerprint(*parts: Any) -> str:
    """A hash of arrays (their bytes), keys and settings (their text)."""
    digest = hashlib.sha256()
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
    """The unfinished fit kept in `folder`.

    Args:
        folder: made if absent.
        fingerprint: of the fit that wants to use it.
        every: seconds between two saves.

    Raises:
        ConfigError: the folder holds another fit's state.
        StoreError: the file there is damaged.
    """

    def __init__(self, folder: str | Path, fingerprint: str, every: float = 5.0) -> None:
        """Read the header of what is there."""
        self._path = Path(folder) / _FILE
        self._fingerprint = fingerprint
        self._every = every
        self._saved_at = -float("inf")
        self._header = self._read_header()

    def _read_header(self) -> dict[str, str]:
        if not self._path.exists():
            return {}
        try:
            with safe_open(str(self._path), framework="np") as file:
                header = dict(file.metadata() or {})
        except (SafetensorError, OSError) as error:
            raise StoreError(f"{self._path} cannot be read ({error}); delete it to start the fit over.") from error
        if header.get("fingerprint") != self._fingerprint:
            raise ConfigError(
                f"checkpoint folder '{self._path.parent}' holds an unfinished fit with other data, settings or seed; "
                f"finish that one, delete {self._path.name}, or choose another folder."
            )
        return header

    def passed(self, phase: str) -> tuple[HistoryRow, ...] | None:
        """The history of a phase that the saved fit has left behind, or None."""
        if phase not in json.loads(self._header.get("passed", "[]")):
            return None
        return tuple(row for row in self._history() if row.phase == phase)

    def resume(self, phase: str, state: Any) -> Resumed:
        """The saved state of this phase, or the given fresh one."""
        if self._header.get("phase") != phase:
            return Resumed(0, state, ())
        leaves, tree = jax.tree.flatten(state)
        with safe_open(str(self._path), framework="np") as file:
            saved = [file.get_tensor(str(i)) for i in range(len(leaves))]
        history = tuple(row for row in self._history() if row.phase == phase)
        restored = jax.tree.unflatten(tree, [jnp.asarray(leaf) for leaf in saved])
        return Resumed(int(self._header["step"]), restored, history)

    def _history(self) -> list[HistoryRow]:
        return [HistoryRow(*row) for row in json.loads(self._header.get("history", "[]"))]

    def save(self, phase: str, step: int, state: Any, history: list[HistoryRow], *, last: bool) -> None:
        """Keep the state if the last save is long enough ago; always at a phase's end."""
        now = time.monotonic()
        if not last and now - self._saved_at < self._every:
            return
        passed = json.loads(self._header.get("passed", "[]"))
        earlier = [row for row in self._history() if row.phase != phase]
        self._header = {
            "fingerprint": self._fingerprint,
            "phase": phase,
            "step": str(step),
            "passed": json.dumps([*passed, phase] if last and phase not in passed else passed),
            "history": json.dumps([*earlier, *history]),
        }
        leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            save_file(leaves, str(temporary), metadata=self._header)
            os.replace(temporary, self._path)
        finally:
            temporary.unlink(missing_ok=True)
        self._saved_at = now

    def clear(self) -> None:
        """Remove the file: the fit is whole."""
        self._path.unlink(missing_ok=True)
