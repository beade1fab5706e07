"""Who is running what: leases on runs, so that several runners on one store never do the same run.

A lease is a small file naming the process that holds it. It ends when it is given back, when its process is gone (seen
at once on the same machine), or when it has not been renewed for `lifetime` seconds (a machine that vanished). Taking
and giving back happen under a file lock, which the operating system releases when a process dies.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from filelock import FileLock

from bgmiv.bench.files import cannot_write
from bgmiv.errors import StoreError

__all__ = ["LIFETIME", "Holder", "Leases", "this_process"]

LIFETIME = 120.0
"""Seconds after which a lease that was not renewed ends."""

_SUFFIX = ".lease"

# Seconds between looks at a lock that another process holds; it is held for less than a millisecond.
_LOOK_AGAIN = 0.002


@dataclass(frozen=True)
class Holder:
    """A process, told apart from others of the same number before it or elsewhere."""

    machine: str
    pid: int
    started: str
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended; False when that cannot be known from here."""
        return self.machine == _machine() and _started(self.pid) != self.started


def this_process() -> Holder:
    """The process that runs this.

    >>> this_process().is_gone
    False
    """
    return Holder(_machine(), os.getpid(), _started(os.getpid()))


class Leases:
    """Leases in a folder.

    Args:
        folder: where they are kept; shared by all runners of a store.
        lifetime: seconds after which a lease that was not renewed ends.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     mine, other = Leases(Path(folder)), Leases(Path(folder))
    ...     mine.take("a"), other.take("a"), mine.give_back("a"), other.take("a")
    (True, False, None, True)
    """

    def __init__(self, folder: Path, lifetime: float = LIFETIME) -> None:
        """Nothing is written before a lease is taken."""
        self.folder = folder
        self.lifetime = lifetime
        self.holder = this_process()
        self._lock = FileLock(folder / "lock")

    def take(self, name: str) -> bool:
        """Take the lease of that name; False if someone else holds it."""
        with self.locked():
            path = self._path(name)
            found = _read(path)
            if found is not None and found != self.holder and not self._ended(path, found):
                return False
            try:
                path.write_text(json.dumps(asdict(self.holder)), encoding="utf-8")
            except OSError as error:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                raise cannot_write(path, error) from error
            return True

    def give_back(self, name: str) -> None:
        """End a lease held here."""
        with self.locked():
            path = self._path(name)
            if _read(path) == self.holder:
                path.unlink(missing_ok=True)

    def held(self, name: str) -> bool:
        """Whether anyone holds a lease of that name that has not ended."""
        path = self._path(name)
        found = _read(path)
        return found is not None and not self._ended(path, found)

    def names(self) -> tuple[str, ...]:
        """The names of all leases that have not ended."""
        return tuple(name for name in self._all() if self.held(name))

    def sweep(self) -> tuple[str, ...]:
        """Remove leases that have ended; their names."""
        if not self.folder.is_dir():
            return ()
        with self.locked():
            ended = tuple(name for name in self._all() if not self.held(name))
            for name in ended:
                self._path(name).unlink(missing_ok=True)
        return ended

    @contextmanager
    def holding(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Take the leases of these names that nobody else holds, and keep them alive while the body runs.

        The body is given the names that were taken; at its end, and when one cannot be taken, they are given back.
        """
        mine: list[str] = []
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(self.lifetime / 4):
                for name in tuple(mine):
                    with suppress(OSError):
                        os.utime(self._path(name))

        thread = threading.Thread(target=renew, name="bgmiv-leases", daemon=True)
        thread.start()
        try:
            for name in names:
                if self.take(name):
                    mine.append(name)
            yield tuple(mine)
        finally:
            ended.set()
            thread.join()
            for name in mine:
                with suppress(OSError):
                    self.give_back(name)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all runners of the store."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(poll_interval=_LOOK_AGAIN)
        except OSError as error:
            raise cannot_write(Path(self._lock.lock_file), error) from error
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"cannot change leases in {self.folder}: {error.strerror or error}") from error
        finally:
            self._lock.release()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"

    def _all(self) -> tuple[str, ...]:
        if not self.folder.is_dir():
            return ()
        return tuple(sorted(path.stem for path in self.folder.iterdir() if path.suffix == _SUFFIX))

    def _ended(self, path: Path, holder: Holder) -> bool:
        if holder.is_gone:
            return True
        try:
            return self._now() - path.stat().st_mtime > self.lifetime
        except FileNotFoundError:
            return True

    def _now(self) -> float:
        # The store's own clock: on a network file system the machines' clocks may disagree with it.
        clock = self.folder / "clock"
        try:
            clock.touch()
            return clock.stat().st_mtime
        except OSError:
            # Full or read-only: looking must still be possible.
            return time.time()


def _read(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        # Cut off while it was being written: its writer died, or is about to finish under the lock.
        return None


@cache
def _machine() -> str:
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    # Process numbers mean something only inside one process namespace (containers).
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _started(pid: int) -> str:
    """When the process began, as the system tells it; empty if there is no such process."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # Field 22 of proc(5); a dead process that was not waited for (Z) runs no more.
        return "" if state in "ZX" else rest[18]
    except (OSError, ValueError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "running"
    return "running"
