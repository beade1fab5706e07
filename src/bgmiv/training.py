"""The one training loop: compiled chunks of steps, after each of which the host reports, saves and may stop.

A `Program` is a frozen config with a pure `step`. The whole of a chunk runs inside one compiled loop; the number of
steps in it is a traced value, so chunks of any length share one compilation. Step `t` draws its randomness from
`fold_in(key, t)`: how a phase is cut into chunks, interrupted or resumed changes nothing in the result.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import prod
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from filelock import FileLock, Timeout
from jax import Array
from jax.scipy.special import ndtri
from jax.typing import ArrayLike
from numpy.typing import NDArray
from safetensors.numpy import load, save

from bgmiv._io import check_writable, remove_strays, write_whole, writing
from bgmiv._version import versions
from bgmiv.data.scaling import ScaledData
from bgmiv.errors import ConfigError, DataError, DivergedError, FitInterrupted, StoreError
from bgmiv.progress import HistoryRow, Reporter, silent

__all__ = [
    "MAX_ROWS",
    "Checkpoint",
    "EarlyStopping",
    "Metrics",
    "Program",
    "RandomNumbers",
    "Resumed",
    "Row",
    "RowWeights",
    "TrainingData",
    "bucket_size",
    "fingerprint",
    "in_blocks",
    "pad_rows",
    "padded_size",
    "run_once",
    "run_phase",
    "training_data",
]  # fmt: skip

_WORDS = 2**32
# Similar numbers of rows share a compiled program: few rows are padded to so many.
_MIN_ROWS = 64

MAX_ROWS = 4096
"""Rows that a trained network is evaluated on together, unless images would need too much memory."""

run_once = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""`jax.jit` for programs that run once a fit: drawing weights compiles in a sixth of the time, and runs as long."""


def bucket_size(n: int, multiple: int = 1) -> int:
    """The padded row count: eight sizes to an octave, at most an eighth above `n`, then up to a multiple.

    Example:
        >>> bucket_size(1000), bucket_size(1020), bucket_size(5000), bucket_size(5000, multiple=32)
        (1024, 1024, 5120, 5120)
    """
    step = max(1, 2 ** (max(n, 1).bit_length() - 4))
    padded = -(-n // step) * step
    return -(-padded // multiple) * multiple


def pad_rows(values: np.ndarray, n_padded: int) -> np.ndarray:
    """Rows of zeros appended up to `n_padded`."""
    return np.pad(values, [(0, n_padded - len(values))] + [(0, 0)] * (values.ndim - 1))


def padded_size(n: int, max_rows: int = MAX_ROWS) -> int:
    """The size of the blocks in which n rows are computed, so that similar numbers of rows share a compiled program."""
    return max(min(_MIN_ROWS, max_rows), bucket_size(min(n, max_rows)))


def in_blocks(function: Callable[..., Array], arrays: Sequence[np.ndarray], size: int) -> np.ndarray:
    """A compiled function of rows, `(n, ...)`, in blocks of `size` rows, of which the last one is padded."""
    n, parts = len(arrays[0]), []
    for start in range(0, n, size):
        block = [pad_rows(np.asarray(values[start : start + size], np.float32), size) for values in arrays]
        parts.append(np.asarray(function(*block))[: n - start])
    return np.concatenate(parts)


class RandomNumbers:
    """All randomness of a training step from one call of the generator; each read takes the next words.

    On a CPU every call of the counter-based generator is a compiled loop of its own: a step with a dozen calls spends
    as long on them as on its matrix products.
    """

    def __init__(self, key: Array, n_words: int) -> None:
        """Draw `n_words` words of 32 bits."""
        self._words = jax.random.bits(key, (n_words,), jnp.uint32)
        self._used = 0

    def words(self, shape: tuple[int, ...]) -> Array:
        """The next random words, whole numbers from 0 to `2**32 - 1`."""
        start, self._used = self._used, self._used + prod(shape)
        if self._used > self._words.size:
            raise ValueError(f"a step asked for {self._used} random words but drew {self._words.size}.")
        return self._words[start : self._used].reshape(shape)

    def index(self, shape: tuple[int, ...], n: Array) -> Array:
        """Whole numbers below `n`; the remainder's bias is below `n / 2**32`."""
        return (self.words(shape) % n.astype(jnp.uint32)).astype(jnp.int32)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Numbers strictly between 0 and 1."""
        return (self.words(shape) >> 9).astype(jnp.float32) * 2.0**-23 + 2.0**-24

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Standard normal numbers."""
        return ndtri(self.uniform(shape))


class Row(NamedTuple):
    """One observation, or a batch of them with a leading axis."""

    x: Array
    y: Array
    v: Array
    w: Array


class RowWeights(NamedTuple):
    """How much each padded row counts.

    Attributes:
        limits: `(n,)` whole numbers that do not fall: a random word below `limits[i]` and not below the one before
            draws row i. Rows that training leaves out have no words.
        training: `(n,)`, of mean one over the rows trained on, zero elsewhere.
        held_out: `(n,)` weights of rows where a model is evaluated on them.
    """

    limits: Array
    training: Array
    held_out: Array


class TrainingData(NamedTuple):
    """Scaled rows padded to a bucket, how many of them are real, and the run of rows that training leaves out.

    Attributes:
        rows: the padded rows.
        n: how many are real.
        fold_start, fold_size: the held-out rows are `fold_start .. fold_start + fold_size`, all of them real ones.
        weights: how much rows count; None if all count the same.
    """

    rows: Row
    n: Array
    fold_start: Array
    fold_size: Array
    weights: RowWeights | None = None

    @property
    def n_training(self) -> Array:
        """How many rows are trained on."""
        return self.n - self.fold_size

    def draw(self, numbers: RandomNumbers, n: int) -> Array:
        """Positions of `n` training rows, drawn with replacement, in proportion to their weights."""
        if self.weights is not None:
            # The last limit is the highest word, which therefore has to give way.
            words = jnp.minimum(numbers.words((n,)), jnp.uint32(_WORDS - 2))
            return jnp.searchsorted(self.weights.limits, words, side="right").astype(jnp.int32)
        index = numbers.index((n,), self.n_training)
        return jnp.where(index < self.fold_start, index, index + self.fold_size)

    def at(self, index: Array) -> Row:
        """The rows at these positions."""
        return Row(*(values[index] for values in self.rows))

    def is_training(self) -> Array:
        """Which padded rows are trained on."""
        index = jnp.arange(len(self.rows.x))
        in_fold = (index >= self.fold_start) & (index < self.fold_start + self.fold_size)
        return (index < self.n) & ~in_fold

    def held_out(self, max_rows: int) -> tuple[Row, Array]:
        """The first `max_rows` rows of the fold, and the weight of each: zero beyond its end, one in sum."""
        place = jnp.arange(max_rows)
        index = jnp.minimum(self.fold_start + place, len(self.rows.x) - 1)
        inside = (place < self.fold_size).astype(self.rows.x.dtype)
        if self.weights is not None:
            inside = inside * self.weights.held_out[index]
        total = jnp.sum(inside)
        return self.at(index), inside / jnp.where(total > 0.0, total, 1.0)


def training_data(
    scaled: ScaledData, batch_size: int, fold: tuple[ArrayLike, ArrayLike] = (0, 0), weights: ArrayLike | None = None
) -> TrainingData:
    """Pad scaled data to its bucket and put it on the device; `fold` is the start and size of what is held out.

    Members that share the rows and hold out others have one start and one size each. Rows are drawn, and a
    model is evaluated on its fold, in proportion to `weights`, `(n,)`.

    Raises:
        DataError: the rows that a member trains on have no weight.
    """
    n = len(scaled.x)
    padded = bucket_size(n, batch_size)
    rows = Row(*(jax.device_put(pad_rows(values, padded)) for values in scaled))
    counted = None if weights is None else _row_weights(np.asarray(weights, np.float64), padded, fold)
    count, start, size = (jax.device_put(np.asarray(number, np.int32)) for number in (n, *fold))
    return TrainingData(rows, count, start, size, counted)


def _row_weights(weights: np.ndarray, padded: int, fold: tuple[ArrayLike, ArrayLike]) -> RowWeights:
    starts, sizes = (np.asarray(part)[..., None] for part in fold)
    place = np.arange(padded)
    inside = (place < len(weights)) & ~((place >= starts) & (place < starts + sizes))
    own = inside * pad_rows(weights, padded)
    totals = np.cumsum(own, axis=-1)
    total = totals[..., -1:]
    if not (total > 0).all():
        raise DataError("weights: the rows left for training all have weight zero. Give more rows a positive weight.")
    # Up to the last row with a weight, beyond which rounding must not leave a word.
    shares = np.where(totals < total, totals / total, 1.0)
    return RowWeights(
        limits=jax.device_put(np.minimum(np.floor(shares * _WORDS), _WORDS - 1).astype(np.uint32)),
        training=jax.device_put((own * inside.sum(axis=-1, keepdims=True) / total).astype(np.float32)),
        held_out=jax.device_put(pad_rows(weights.astype(np.float32), padded)),
    )


Metrics = dict[str, Array]
"""What a step reports, by name; "loss" is among it."""


class Program(Protocol):
    """A training phase: how many steps there are, how many in a chunk, and the pure step."""

    @property
    def name(self) -> str:
        """The phase's name, as progress and history show it."""

    @property
    def n_steps(self) -> int:
        """Steps of the whole phase."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the step's metrics; "loss" is among them."""

    @property
    def chunk(self) -> int:
        """Steps of a compiled chunk, after which the host reports and saves."""

    def step(self, state: Any, data: Any, key: Array) -> tuple[Any, Metrics]:
        """One step: the next state and its metrics."""


@runtime_checkable
class EarlyStopping(Protocol):
    """A phase that evaluates its state on held-out rows after every chunk, and may stop before its last step."""

    def evaluate(self, state: Any, data: Any) -> Any:
        """The state after the evaluation."""

    def stopped(self, state: Any) -> Array:
        """Whether nothing is to be gained by going on, for one member or for each."""


_FILE, _LOCK = "unfinished-fit.checkpoint", "unfinished-fit.lock"
_SECONDS_BETWEEN_SAVES = 5.0


def fingerprint(*parts: Any) -> str:
    """A hash of arrays (their bytes), settings (their text), and of the versions that decide the numbers."""
    digest = hashlib.sha256(
        "".join(f"{name} {version}\0" for name, version in versions("jax", "numpy").items()).encode()
    )
    for part in parts:
        if isinstance(part, np.ndarray):
            array = np.ascontiguousarray(part)
            digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        else:
            digest.update(repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


class Resumed(NamedTuple):
    """Where a phase goes on: steps done, its state, the history up to there, and whether the fit has left it behind."""

    step: int
    state: Any
    history: list[HistoryRow]
    passed: bool = False


class Checkpoint:
    """The unfinished fit kept in `folder`, for one fit at a time: a context that a whole fit leaves empty.

    Args:
        folder: made if absent.
        fingerprint: of the fit that wants to use it.

    Raises:
        ConfigError: on entry, if the folder holds another fit's state or another process uses it.
        StoreError: on entry, if the file there is damaged or nothing can be written there.
    """

    def __init__(self, folder: str | Path, fingerprint: str) -> None:
        """Nothing is read or locked before the context is entered."""
        self._path = Path(folder) / _FILE
        self._fingerprint = fingerprint
        self._saved_at = -float("inf")
        self._header: dict[str, Any] = {"phase": "", "step": 0, "passed": [], "history": []}
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
            self._read()
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

    def _read(self) -> None:
        try:
            saved = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror or error}.") from error
        checksum, _, content = saved.partition(b"\n")
        if checksum.decode("latin-1") != hashlib.sha256(content).hexdigest():
            raise StoreError(f"{self._path} is damaged (its checksum does not match); delete it to start the fit over.")
        text, _, arrays = content.partition(b"\n")
        header = json.loads(text)
        if header["fingerprint"] != self._fingerprint:
            raise ConfigError(
                f"checkpoint folder '{self._path.parent}' holds an unfinished fit with other data, settings or seed, "
                f"or by another version of bgmiv; finish that one, delete {self._path.name}, or choose another folder."
            )
        self._header, self._leaves = header, load(arrays)

    def resume(self, phase: str, state: Any) -> Resumed:
        """The saved state of this phase, or the given fresh one."""
        history = [HistoryRow(*row) for row in self._header["history"] if row[0] == phase]
        passed, step = phase in self._header["passed"], 0
        if self._header["phase"] == phase:
            leaves, tree = jax.tree.flatten(state)
            state = jax.device_put(jax.tree.unflatten(tree, [self._leaves[str(i)] for i in range(len(leaves))]))
            step = self._header["step"]
        return Resumed(step, state, history, passed)

    def save(self, phase: str, step: int, state: Any, history: list[HistoryRow], *, last: bool) -> None:
        """Keep the state if the last save is long enough ago; always at a phase's end.

        Raises:
            StoreError: it cannot be written; the state saved before is still there.
        """
        if not last and monotonic() - self._saved_at < _SECONDS_BETWEEN_SAVES:
            return
        passed = self._header["passed"]
        earlier = [row for row in self._header["history"] if row[0] != phase]
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


@partial(jax.jit, static_argnames=("program",), donate_argnames=("state",))
def _run_chunk(program: Program, state: Any, data: Any, key: Array, start: Array, count: Array) -> tuple[Any, Metrics]:
    def one(state: Any, data: Any, key: Array) -> tuple[Any, Metrics]:
        zeros = {name: jnp.zeros(()) for name in program.metric_names}

        def body(i: Array, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
            state, sums = carry
            state, metrics = program.step(state, data, jax.random.fold_in(key, start + i))
            return state, jax.tree.map(jnp.add, sums, metrics)

        state, sums = jax.lax.fori_loop(0, count, body, (state, zeros))
        if isinstance(program, EarlyStopping):
            state = program.evaluate(state, data)
        return state, jax.tree.map(lambda total: total / count, sums)

    if key.ndim == 0:
        return one(state, data, key)
    return jax.vmap(one, in_axes=(0, _member_axes(data), 0))(state, data, key)


def _member_axes(data: TrainingData) -> Any:
    """Where each part of the data has its member axis: members share rows, and each may hold out others."""
    axis = 0 if data.fold_start.ndim else None
    weights = jax.tree.map(lambda values: 0 if values.ndim > 1 else None, data.weights)
    return TrainingData(*(None, None, axis, axis, weights))  # type: ignore[arg-type]


@run_once
def _own(state: Any) -> Any:
    """A copy that a chunk may have, as the state belongs to the caller.

    Its types are those that a chunk returns: a number that still is Python's would be a program of its own to compile.
    """
    return jax.tree.map(lambda leaf: jnp.array(leaf, leaf.dtype, copy=True), state)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed in the body.

    Python drops an exception that is raised while garbage is collected, where JAX has a function of its own: without a
    note of it the fit would go on as if nothing had been pressed.
    """
    handler, pressed = signal.getsignal(signal.SIGINT), threading.Event()
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield pressed.is_set
        return

    def note(number: int, frame: Any) -> None:
        pressed.set()
        handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, handler)


def run_phase(
    program: Program,
    state: Any,
    data: Any,
    key: Array,
    *,
    reporter: Reporter = silent,
    checkpoint: Checkpoint | None = None,
) -> tuple[Any, tuple[HistoryRow, ...]]:
    """Run a phase to its end; one that the checkpoint has passed is not run again.

    The data are what the program's steps take. With one key a member they are `TrainingData`, whose rows all share, and
    the state has a leading member axis, and so may the folds of the rows.

    Returns:
        The final state and one history row a chunk; with several keys each metric is a list with one number a member.

    Raises:
        FitInterrupted: on Ctrl-C, at the end of the running chunk.
        DivergedError: when no member's loss is finite any more.
    """
    resumed = checkpoint.resume(program.name, state) if checkpoint else Resumed(0, state, [])
    if resumed.passed:
        return resumed.state, tuple(resumed.history)
    done, state, history, _ = resumed._replace(state=_own(resumed.state))
    if checkpoint is not None and not done:
        # A disk that cannot hold the state is better known now.
        checkpoint.save(program.name, 0, state, history, last=False)
    reporter.start(program.name, program.n_steps - done)
    try:
        with _interrupts() as pressed:
            while done < program.n_steps:
                count = min(program.chunk - done % program.chunk, program.n_steps - done)
                state, metrics = _run_chunk(program, state, data, key, jnp.asarray(done), jnp.asarray(count))
                done += count
                losses = {name: np.asarray(value) for name, value in metrics.items()}
                if not np.isfinite(losses["loss"]).any():
                    raise DivergedError(program.name, done)
                means = {name: float(np.mean(value)) for name, value in losses.items()}
                history.append(HistoryRow(program.name, done, {name: value.tolist() for name, value in losses.items()}))
                stop = isinstance(program, EarlyStopping) and bool(np.all(program.stopped(state)))
                if checkpoint is not None:
                    checkpoint.save(program.name, done, state, history, last=stop or done == program.n_steps)
                reporter.advance(count, means)
                if pressed():
                    raise KeyboardInterrupt
                if stop:
                    break
    except KeyboardInterrupt:
        advice = "give a checkpoint folder to be able to go on from there."
        if checkpoint is not None:
            advice = "call fit again with the same checkpoint folder to go on."
        where = f"the fit was interrupted in phase '{program.name}' after step {done}"
        raise FitInterrupted(f"{where}; {advice}") from None
    finally:
        reporter.finish()
    return state, tuple(history)
