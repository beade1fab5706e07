"""The phases of a fit as single calls, for one member or for many that train together.

Many members are the same calls with a leading member axis on models, keys, folds and (unless shared) rows. In their
history each metric is an array with one number a member, since the loop's own rows are means over members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgmiv.errors import DivergedError
from bgmiv.model.model import BGMIVModel, encode_rows
from bgmiv.progress import Reporter, silent
from bgmiv.train.alternating import Alternating
from bgmiv.train.checkpoint import Checkpoint
from bgmiv.train.direct import DirectStart
from bgmiv.train.egm import WarmStart
from bgmiv.train.history import HistoryRow
from bgmiv.train.loop import Program, Reviewed, TrainingData, run_phase

__all__ = [
    "Recorded",
    "RecordedState",
    "Start",
    "Trained",
    "WarmStartProgram",
    "alternate",
    "initial_latents",
    "members_of",
    "over_members",
    "stack_members",
    "warm_start",
]


class Start(NamedTuple):
    """Where training begins: a drawn model, scaled rows, and the keys of what follows."""

    model: BGMIVModel
    data: TrainingData
    key_warm: Array
    key_latents: Array
    key_alternate: Array


class Trained(NamedTuple):
    """Where training ends: the model, the rows' latents (padding included), and the history of all phases."""

    model: BGMIVModel
    latents: Array
    history: tuple[HistoryRow, ...]


def stack_members(starts: Sequence[Start]) -> Start:
    """Starts of equal shapes along one leading member axis, each of them of one member or of many that share rows."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(_with_own_rows(start) for start in starts))


def _with_own_rows(start: Start) -> Start:
    if start.key_warm.ndim == 0:
        return jax.tree.map(lambda leaf: leaf[None], start)
    if start.data.n.ndim:
        return start
    n_members = len(start.key_warm)
    rows, n = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (n_members, *leaf.shape)), (start.data.rows, start.data.n)
    )
    weights = jax.tree.map(
        lambda leaf: leaf if leaf.ndim > 1 else jnp.broadcast_to(leaf, (n_members, *leaf.shape)), start.data.weights
    )
    return start._replace(data=start.data._replace(rows=rows, n=n, weights=weights))


def members_of(together: Trained) -> tuple[Trained | DivergedError, ...]:
    """Each member on its own, or the error its own fit would have raised: its first loss that is not finite."""
    n_members = len(together.latents)
    # Taken apart on the host, where a slice needs no compilation.
    parts = jax.tree.map(np.asarray, (together.model, together.latents))

    def one(i: int) -> Trained | DivergedError:
        history = tuple(
            HistoryRow(
                row.phase,
                row.step,
                {name: float(np.broadcast_to(values, (n_members,))[i]) for name, values in row.metrics.items()},
            )
            for row in together.history
        )
        for row in history:
            if not np.isfinite(row.metrics["loss"]):
                return DivergedError(row.phase, row.step)
        model, latents = jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), parts)
        return Trained(model, latents, history)

    return tuple(one(i) for i in range(n_members))


class RecordedState(NamedTuple):
    """A phase's state, the sums of its metrics in each chunk `(chunks, metrics)`, and the steps done."""

    state: Any
    sums: Array
    done: Array


@dataclass(frozen=True)
class Recorded:
    """A phase that writes its metrics into its state, so that every member keeps a history of its own.

    Example:
        >>> Recorded(DirectStart(iterations=1200, chunk=500)).init(()).sums.shape
        (3, 5)
    """

    program: Program

    @property
    def name(self) -> str:
        """The phase's name."""
        return self.program.name

    @property
    def n_steps(self) -> int:
        """The phase's steps."""
        return self.program.n_steps

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The phase's metrics."""
        return self.program.metric_names

    @property
    def chunk(self) -> int:
        """The phase's chunk."""
        return self.program.chunk

    def init(self, state: Any) -> RecordedState:
        """An empty record beside the phase's state."""
        shape = (-(-self.n_steps // self.chunk), len(self.metric_names))
        return RecordedState(state, jnp.zeros(shape), jnp.zeros((), jnp.int32))

    def step(self, state: RecordedState, data: TrainingData, key: Array) -> tuple[RecordedState, dict[str, Array]]:
        """The phase's step, written down."""
        after, metrics = self.program.step(state.state, data, key)
        values = jnp.stack([metrics[name] for name in self.metric_names])
        sums = state.sums.at[state.done // self.chunk].add(values)
        return RecordedState(after, sums, state.done + 1), metrics

    def review(self, state: RecordedState, data: TrainingData) -> RecordedState:
        """The phase's look at held-out rows, if it takes one."""
        if not isinstance(self.program, Reviewed):
            return state
        return state._replace(state=self.program.review(state.state, data))

    def stopped(self, state: RecordedState) -> Array:
        """Whether the phase has stopped, each member of it."""
        if not isinstance(self.program, Reviewed):
            return jnp.zeros((), bool)
        return self.program.stopped(state.state)

    def history(self, state: RecordedState) -> tuple[HistoryRow, ...]:
        """One row a chunk from the members' sums `(members, chunks, metrics)`."""
        rows = []
        done = int(np.max(state.done))
        n_chunks = -(-done // self.chunk)
        for i, total in enumerate(np.moveaxis(np.asarray(state.sums), 1, 0)[:n_chunks]):
            stop = min((i + 1) * self.chunk, done)
            means: dict[str, Any] = dict(zip(self.metric_names, total.T / (stop - i * self.chunk), strict=True))
            rows.append(HistoryRow(self.name, stop, means))
        return tuple(rows)


def over_members(function: Any, key: Array, *shared: bool) -> Any:
    """`function` itself for one key, or mapped over the member axis of many.

    Args:
        function: takes the arguments described by `shared`, then a key.
        key: one key or one a member.
        shared: for each leading argument, whether members share it.
    """
    if key.ndim == 0:
        return function
    return jax.vmap(function, in_axes=(*(None if s else 0 for s in shared), 0))


def _run(
    program: Program, state: Any, data: TrainingData, key: Array, reporter: Reporter, checkpoint: Checkpoint | None
) -> tuple[Any, tuple[HistoryRow, ...]]:
    if key.ndim == 0:
        return _end_of(program, state, checkpoint) or run_phase(
            program, state, data, key, reporter=reporter, checkpoint=checkpoint
        )
    recorded = Recorded(program)
    state = jax.vmap(recorded.init)(state)
    after, earlier = _end_of(recorded, state, checkpoint) or run_phase(
        recorded, state, data, key, reporter=reporter, checkpoint=checkpoint
    )
    history = recorded.history(after)
    if not history:
        return after.state, earlier
    if checkpoint is not None:
        # The loop's own rows are means over members, and the next phase's state will take the place of their record.
        plain = [
            row._replace(metrics={name: np.asarray(x).tolist() for name, x in row.metrics.items()}) for row in history
        ]
        checkpoint.save(program.name, history[-1].step, after, plain, last=True)
    return after.state, history


def _end_of(program: Program, state: Any, checkpoint: Checkpoint | None) -> tuple[Any, tuple[HistoryRow, ...]] | None:
    """State and history of a phase whose end is what was saved; one that stopped early has steps left, never run."""
    if checkpoint is None or not checkpoint.holds(program.name) or checkpoint.passed(program.name) is None:
        return None
    _, state, history = checkpoint.resume(program.name, state)
    return state, history


WarmStartProgram = WarmStart | DirectStart
"""Either kind of warm start."""


def warm_start(
    config: WarmStartProgram,
    model: BGMIVModel,
    data: TrainingData,
    key: Array,
    reporter: Reporter = silent,
    checkpoint: Checkpoint | None = None,
) -> tuple[BGMIVModel, tuple[HistoryRow, ...]]:
    """The model after the EGM phase, and its history."""
    if config.iterations == 0:
        return model, ()
    keys = jax.vmap(jax.random.split)(key) if key.ndim else jax.random.split(key)
    key_init, key_run = (keys[:, 0], keys[:, 1]) if key.ndim else (keys[0], keys[1])
    state = over_members(config.init, key, False)(model, key_init)
    state, history = _run(config, state, data, key_run, reporter, checkpoint)
    return config.result(state), history


def initial_latents(config: WarmStartProgram, model: BGMIVModel, data: TrainingData, key: Array) -> Array:
    """e(v) for every row after a warm start, else draws from the prior."""
    own_data = data.n.ndim == 1

    def one(model: BGMIVModel, v: Array, key: Array) -> Array:
        if config.iterations == 0:
            return model.layout.sample_prior(key, len(v))
        return encode_rows(model, v)

    return over_members(one, key, False, not own_data)(model, data.rows.v, key)


def alternate(
    config: Alternating,
    model: BGMIVModel,
    latents: Array,
    data: TrainingData,
    key: Array,
    reporter: Reporter = silent,
    checkpoint: Checkpoint | None = None,
) -> tuple[BGMIVModel, Array, tuple[HistoryRow, ...]]:
    """Model and latents after Algorithm 1, and its history."""
    if config.epochs == 0:
        return model, latents, ()
    init = config.init if key.ndim == 0 else jax.vmap(config.init)
    state, history = _run(config, init(model, latents), data, key, reporter, checkpoint)
    return state.model, state.latents.z, history
