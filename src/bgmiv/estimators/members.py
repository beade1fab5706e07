"""Methods with networks: several members, each trained without some of the rows, and averaged; and what they share.

Averaging takes away much of what chance in starting weights and batches does to a fit. The rows that a member holds out
tell it when to stop. Wide vector blocks and images are reduced to scores first, once for all members.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from bgmiv._io import enable_compilation_cache
from bgmiv.data.folds import draw_folds
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query, Rows
from bgmiv.data.scaling import RoleScaling, ScaledData, Scaler
from bgmiv.data.schema import CovariateBlock, Schema
from bgmiv.diagnostics.held_out import held_out_values
from bgmiv.errors import DivergedError
from bgmiv.estimators.base import SeededEstimator
from bgmiv.estimators.fitted import MethodConfig, check_no_weights, usable_rows
from bgmiv.fitted import FittedMethod, HeldOutPredictions
from bgmiv.intervals import Floats
from bgmiv.nn.features import BlockFeatures, build_features, rows_at_once
from bgmiv.nn.layers import Dense
from bgmiv.nn.settings import FeatureConfig, ImageConfig, Schedule, check_bounds
from bgmiv.preprocess.reduction import BlockReduction, FittedReduction, reduced_rows
from bgmiv.progress import HistoryRow, Reporter, mean_history, silent
from bgmiv.support import LinearSupport
from bgmiv.training import MAX_ROWS, in_blocks, padded_size

__all__ = [
    "DEFAULT_FEATURES", "Best", "CovariateNet", "FittedMembers", "Learner", "Member", "MemberRows", "NetMember",
    "NetworkConfig", "NetworkEstimator", "in_pieces", "step_factor",
]  # fmt: skip

DEFAULT_FEATURES = FeatureConfig(
    dropout=0.0, vector_noise=0.3, narrow_vector=32, images=ImageConfig(features="dense", shift=2, noise=0.2)
)
"""What networks see of vector and image blocks under the default presets, after their reduction to scores.

Scores of a vector block are columns, noised in training, which keeps networks from memorising rows; a wider block goes
through its own layers. Images, where they are not reduced, are seen through dense layers instead of convolutions,
shifted by up to 2 pixels and noised in training.
"""

# Where the key of the folds branches off from the fit's key.
_FOLDS = 1_000_001
_HELD_OUT_SHARE = 0.1


class CovariateNet(eqx.Module):
    """Dense layers with ReLU and dropout over a side input (treatment or instruments) and the covariates' features."""

    features: BlockFeatures
    layers: tuple[Dense, ...]
    output: Dense
    dropout: float = eqx.field(static=True)

    def __init__(
        self,
        blocks: Sequence[CovariateBlock],
        features: FeatureConfig,
        n_side: int,
        hidden: Sequence[int],
        n_out: int,
        *,
        dropout: float = 0.0,
        key: Array,
    ) -> None:
        key_features, key_net = jax.random.split(key)
        *keys, key_output = jax.random.split(key_net, len(hidden) + 1)
        self.features = build_features(blocks, features, key=key_features)
        widths = (n_side + self.features.width, *hidden)
        self.layers = tuple(Dense(a, b, key=k) for (a, b), k in zip(pairwise(widths), keys, strict=True))
        self.output = Dense(widths[-1], n_out, key=key_output)
        self.dropout = dropout

    @property
    def noise_width(self) -> int:
        """Uniform numbers a row needs in training."""
        dropped = sum(layer.bias.shape[-1] for layer in self.layers) if self.dropout > 0.0 else 0
        return self.features.noise_width + dropped

    def __call__(self, side: Array, v: Array, noise: Array | None) -> Array:
        """Outputs for one row; `noise` switches dropout on."""
        return self.many(side[None], v, noise)[0]

    def many(self, sides: Array, v: Array, noise: Array | None) -> Array:
        """Outputs `(m, n_out)` for several side inputs of one row, all under the same dropout mask.

        Masks of their own would let the average over side inputs average the dropout away as well.
        """
        used = self.features.noise_width
        context = self.features(v, None if noise is None else noise[:used])
        return self.dense(sides, context, None if noise is None else noise[used:])

    def dense(self, sides: Array, context: Array, noise: Array | None) -> Array:
        """Outputs `(m, n_out)` for several side inputs of one row whose features are known."""
        h, used = jnp.concatenate([sides, jnp.broadcast_to(context, (len(sides), len(context)))], axis=1), 0
        for layer in self.layers:
            h = jax.nn.relu(layer(h))
            if noise is not None and self.dropout > 0.0:
                width = h.shape[-1]
                keep = (noise[used : used + width] >= self.dropout) / (1.0 - self.dropout)
                h, used = h * keep, used + width
        return self.output(h)


class Learner(NamedTuple):
    """A network in training and the state of its optimiser."""

    net: Any
    optimiser: optax.OptState

    @classmethod
    def begin(cls, net: Any, optimiser: optax.GradientTransformation) -> Learner:
        """A network that has not learned yet."""
        return cls(net, optimiser.init(net))

    def moved(self, optimiser: optax.GradientTransformation, grads: Any, rate: Array | float = 1.0) -> Learner:
        """The learner after one update, which is multiplied by `rate`."""
        updates, state = optimiser.update(grads, self.optimiser, self.net)
        return Learner(optax.apply_updates(self.net, jax.tree.map(lambda update: rate * update, updates)), state)


class Best(NamedTuple):
    """The newest networks that were not clearly worse than others on held-out rows.

    Attributes:
        networks: these.
        loss: the lowest held-out loss so far.
        stale: how many evaluations since were clearly worse.
    """

    networks: Any
    loss: Array
    stale: Array

    @classmethod
    def first(cls, networks: Any) -> Best:
        """Nothing has been evaluated yet."""
        # A weakly typed infinity would come back strongly typed and compile the chunk a second time.
        return cls(networks, jnp.full((), jnp.inf, jnp.float32), jnp.zeros((), jnp.int32))

    def after(self, networks: Any, loss: Array, limit: Array) -> Best:
        """The best after networks with this loss were tried; one above `limit` is clearly worse."""
        keep = loss <= limit
        kept = jax.tree.map(lambda new, old: jnp.where(keep, new, old), networks, self.networks)
        return Best(kept, jnp.minimum(loss, self.loss), jnp.where(keep, 0, self.stale + 1))


def step_factor(schedule: Schedule, done: Array, total: int) -> Array:
    """The factor on the step size after `done` of `total` epochs or rounds."""
    return jnp.ones(()) if schedule == "constant" else 0.5 * (1.0 + jnp.cos(jnp.pi * done / total))


def in_pieces(function: Callable[..., Array], arrays: Sequence[np.ndarray], cells: int = 0) -> np.ndarray:
    """A compiled function of rows, in pieces padded so that memory is bounded and similar sizes share a compilation.

    `cells` are the numbers in the largest array that one row needs.
    """
    return in_blocks(function, arrays, padded_size(len(arrays[0]), rows_at_once(cells, MAX_ROWS)))


class Member(ABC):
    """One trained copy of a method, on scaled variables.

    Attributes:
        history: its training history.
    """

    history: tuple[HistoryRow, ...]

    @abstractmethod
    def encode(self, v: np.ndarray) -> np.ndarray:
        """What it computes of scaled covariates `(n, p)` alone, `(n, k)`."""

    @abstractmethod
    def structural(self, x: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        """g in units of the scaled outcome, `(n,)`, at the treatment's columns `(n, q)`."""


@dataclass(frozen=True, eq=False)
class NetMember(Member):
    """A member whose g is one `CovariateNet` of the scaled treatment."""

    net: CovariateNet
    history: tuple[HistoryRow, ...] = ()

    def encode(self, v: np.ndarray) -> np.ndarray:
        """The network's features of each row."""
        return in_pieces(partial(_features, self.net), [v], self.net.features.cells)

    def structural(self, x: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        """The network's output."""
        return in_pieces(partial(_dense, self.net), [x, encoded])[:, 0]


@jax.jit
def _features(net: CovariateNet, v: Array) -> Array:
    return jax.vmap(net.features, in_axes=(0, None))(v, None)


@jax.jit
def _dense(net: CovariateNet, sides: Array, features: Array) -> Array:
    return jax.vmap(lambda side, row: net.dense(side[None], row, None)[0])(sides, features)


@dataclass(frozen=True, eq=False)
class FittedMembers(FittedMethod):
    """A fitted method with networks: the average of its members. A final subclass says of which class they are.

    Attributes:
        schema, support: what the fit keeps of its data.
        config: the settings.
        reduction: how wide vector blocks and images are reduced.
        scaler: the fitted scaling of each role, after the reduction.
        members: those that did not diverge.
        held_out_rows: positions of the rows that each was not trained on.
    """

    schema: Schema
    support: LinearSupport
    config: NetworkConfig
    reduction: FittedReduction
    scaler: Scaler
    members: tuple[Member, ...]
    held_out_rows: tuple[np.ndarray, ...] = field(default=(), kw_only=True)
    compiled = True

    @property
    def n_members(self) -> int:
        """How many models the estimate is an average of."""
        return len(self.members)

    @property
    def history(self) -> tuple[HistoryRow, ...]:
        """Losses of each chunk of training, averaged over members."""
        return mean_history([member.history for member in self.members])

    def encode(self, covariates: FloatArray) -> Encoded:
        """What each member computes of the rows."""
        v = self.scaler.covariates.transform(self.reduction.transform(covariates))
        return tuple(member.encode(v) for member in self.members)

    def at(self, query: Query) -> Floats:
        """The structural function in units of the outcome, `(m, n)`, averaged over members."""
        return np.asarray(np.mean(self.members_at(query), axis=0), np.float64)

    def members_at(self, query: Query) -> Floats:
        """The structural function of each member, `(members, m, n)`."""
        encoded = query.rows.encoded_by(self)

        def values(i: int, x: FloatArray, rows: np.ndarray) -> np.ndarray:
            columns = self.schema.treatment.columns(self.scaler.treatment.transform(x))
            return self.members[i].structural(columns, encoded[i][rows])

        each = [query.collect(partial(values, i), MAX_ROWS) for i in range(len(self.members))]
        return np.stack([self.scaler.outcome.inverse(one) for one in each])

    def held_out_predictions(self, data: IVData, rows: Rows, max_rows: int) -> HeldOutPredictions | None:
        """g at rows of the fit, each by the member that held it out; None if a member was trained on all rows."""
        if not self.held_out_rows or not all(len(part) for part in self.held_out_rows):
            return None
        return held_out_values(self.held_out_rows, Query(data.treatment[None], rows), self.members_at, max_rows)


class MemberRows(NamedTuple):
    """Reduced and scaled rows: those that a member is trained on, and those that it holds out, if any.

    `groups` has the group of each row that it is trained on; None if rows are independent.
    """

    train: ScaledData
    held_out: ScaledData | None
    groups: NDArray[np.integer] | None

    @classmethod
    def without(cls, fold: np.ndarray, rows: ScaledData, groups: NDArray[np.integer] | None) -> MemberRows:
        """All rows but those of a fold, which are held out; both in their own order."""
        if not len(fold):
            return cls(rows, None, groups)
        train = ScaledData(*(np.delete(values, fold, axis=0) for values in rows))
        held_out = ScaledData(*(values[np.sort(fold)] for values in rows))
        return cls(train, held_out, None if groups is None else np.delete(groups, fold))

    def changed(self, change: Callable[[ScaledData], ScaledData]) -> MemberRows:
        """The same with both kinds of rows changed."""
        return self._replace(train=change(self.train), held_out=self.held_out and change(self.held_out))


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(MethodConfig):
    """What the configs of methods with networks share; a final subclass gives `fit_member` and `fitted_class`.

    Args:
        members: how many members are trained; their predictions are averaged.
        held_out: the share of the rows that each member holds out, in whole groups; None: a tenth, none with a vector
            or image block.
        reduction: how wide vector blocks and images are reduced to scores; None leaves them as they are.
        scaling: how each role is scaled, after the reduction.
        use_instrument: False ignores the instruments.
    """

    fitted_class: ClassVar[type[FittedMembers]]

    members: int = 4
    held_out: float | None = None
    reduction: BlockReduction | None = BlockReduction()
    scaling: RoleScaling = field(default_factory=RoleScaling)
    use_instrument: bool = True

    def __post_init__(self) -> None:
        check_bounds(self, members=1, held_out=(0, 0.5))

    @abstractmethod
    def fit_member(self, schema: Schema, rows: MemberRows, key: Array, reporter: Reporter) -> Member:
        """One member; the schema is that of the reduced data."""

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedMembers:
        """Reduce, scale, and train each member without its fold; members that diverge are left out unless all do.

        Raises:
            DataError: a method with networks cannot be fitted on such data.
            DivergedError: every member diverged.
        """
        enable_compilation_cache()
        key = jax.random.key(seed)
        method = self.fitted_class.__name__.removeprefix("Fitted")
        check_no_weights(data, method)
        usable_rows(data, method, use_instrument=self.use_instrument)
        reduction, reduced = reduced_rows(self.reduction, data, reporter)
        used = reduced if self.use_instrument else reduced.without_instruments()
        scaler = self.scaling.fit(used)
        rows = scaler.transform(used)
        share = _HELD_OUT_SHARE * (not data.schema.has_wide_block) if self.held_out is None else self.held_out
        folds = draw_folds(data.n_rows, self.members, share, jax.random.fold_in(key, _FOLDS), data.groups)
        members: dict[int, Member] = {}
        for i, own_key in enumerate([key] if self.members == 1 else jax.random.split(key, self.members)):
            if self.members > 1:
                reporter.stage(f"member {i + 1} of {self.members}")
            try:
                own = MemberRows.without(folds.rows(i), rows, data.groups)
                members[i] = self.fit_member(reduced.schema, own, own_key, reporter)
            except DivergedError:
                if i == self.members - 1 and not members:
                    raise
        support, left_out = LinearSupport.fit(data), tuple(folds.rows(i) for i in members)
        together = tuple(members.values())
        return self.fitted_class(data.schema, support, self, reduction, scaler, together, held_out_rows=left_out)


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkEstimator(SeededEstimator):
    """An estimator whose fitted result holds members and whose arguments left at None take the preset's value."""

    preset: Literal["default", "paper"] = "default"
    members: int | None = None
    held_out: float | None = None
    scaling: RoleScaling | None = None
