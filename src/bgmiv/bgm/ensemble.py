"""Members: the same model trained several times on one data set, each time without some of its rows.

Averaging members takes away much of what chance in starting weights and batches does to a fit, most of all where the
data say little. The rows a member leaves out tell when to stop, and what its estimate is worth. Members train together:
models, keys and folds have a leading member axis, and the rows are shared.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from bgmiv.bgm.alternating import AlternatingProgram
from bgmiv.bgm.egm import EGMProgram
from bgmiv.bgm.joint import JointProgram, JointState
from bgmiv.bgm.model import BGMIVModel, encode_rows
from bgmiv.bgm.settings import EGM, Alternating, JointTraining
from bgmiv.errors import DivergedError
from bgmiv.progress import HistoryRow, Reporter, silent
from bgmiv.training import Checkpoint, TrainingData, run_once, run_phase

__all__ = ["Start", "Trained", "members_of", "row_weights", "train"]

# Where the keys of the bootstrap branch off from the members' keys.
_BOOTSTRAP = 3_000_000


def row_weights(keys: Array, n: int, weights: np.ndarray | None = None, groups: np.ndarray | None = None) -> np.ndarray:
    """How much rows count in each member by the Bayesian bootstrap, `(members, n)`, times their sample weights.

    There is one key a member, and `groups` has codes of groups of rows that are drawn together.
    """
    codes = np.arange(n) if groups is None else groups
    drawn = []
    for key in keys:
        seed = np.asarray(jax.random.key_data(jax.random.fold_in(key, _BOOTSTRAP))).ravel().tolist()
        drawn.append(np.random.default_rng(seed).exponential(size=int(codes.max()) + 1)[codes])
    return np.stack(drawn) * (1.0 if weights is None else weights)


class Start(NamedTuple):
    """Where training begins: a drawn model, scaled rows, the keys of the phases, and what a line has on held-out rows.

    Networks must go below `linear_loss` to be trained to the end (`JointState`); None for all to be.
    """

    model: BGMIVModel
    data: TrainingData
    key_initial: Array
    key_latents: Array
    key_alternate: Array
    linear_loss: Array | None = None


class Trained(NamedTuple):
    """Where training ends: the model and the history of all phases."""

    model: BGMIVModel
    history: tuple[HistoryRow, ...]


def members_of(together: Trained) -> tuple[Trained | DivergedError, ...]:
    """Each member on its own, or the error its own fit would have raised: its first loss that is not finite."""
    # Taken apart on the host, where a slice needs no compilation.
    models = jax.tree.map(np.asarray, together.model)

    def one(i: int) -> Trained | DivergedError:
        history = []
        for row in together.history:
            # A list with one number a member, in which `run_phase` gives the metrics of several members.
            metrics: dict[str, Any] = row.metrics
            history.append(row._replace(metrics={name: float(values[i]) for name, values in metrics.items()}))
            if not np.isfinite(history[-1].metrics["loss"]):
                return DivergedError(row.phase, row.step)
        return Trained(jax.device_put(jax.tree.map(lambda leaf: leaf[i], models)), tuple(history))

    return tuple(one(i) for i in range(len(jax.tree.leaves(models)[0])))


def train(
    initial: EGM | JointTraining,
    alternating: Alternating,
    start: Start,
    reporter: Reporter = silent,
    checkpoint: Checkpoint | None = None,
) -> Trained:
    """The phases one after another, for one member or for many with a leading member axis.

    Latents of Algorithm 1 begin at e(v) for every row after an initial phase, and without one at draws from the prior.
    """
    over: Any = jax.vmap if start.key_initial.ndim else lambda function: function
    warm_start: EGMProgram | JointProgram = EGMProgram(initial) if isinstance(initial, EGM) else JointProgram(initial)
    algorithm, model = AlternatingProgram(alternating), start.model
    history: tuple[HistoryRow, ...] = ()
    if initial.iterations:
        keys = over(jax.random.split)(start.key_initial)
        key_init, key_run = keys[..., 0], keys[..., 1]
        begun: Any = _begin(warm_start, model, key_init, many=bool(key_init.ndim))
        if isinstance(begun, JointState) and start.linear_loss is not None:
            begun = begun._replace(linear_loss=start.linear_loss)
        state, history = run_phase(warm_start, begun, start.data, key_run, reporter=reporter, checkpoint=checkpoint)
        model = warm_start.result(state)
    if alternating.epochs:
        if initial.iterations:
            latents = over(lambda model: encode_rows(model, start.data.rows.v))(model)
        else:
            n = len(start.data.rows.x)
            latents = over(lambda model, key: model.layout.sample_prior(key, n))(model, start.key_latents)
        begun = _begin(algorithm, model, latents, many=bool(start.key_initial.ndim))
        state, more = run_phase(
            algorithm, begun, start.data, start.key_alternate, reporter=reporter, checkpoint=checkpoint
        )
        model, history = state.model, history + more
    return Trained(model, history)


@partial(run_once, static_argnames=("phase", "many"))
def _begin(
    phase: EGMProgram | JointProgram | AlternatingProgram, model: BGMIVModel, given: Array, *, many: bool
) -> Any:
    """The first state of a phase, by one program: leaf by leaf its optimisers would compile dozens."""
    return jax.vmap(phase.init)(model, given) if many else phase.init(model, given)
