"""Members: a method with networks trained several times, each time without some of the rows, and averaged.

Averaging takes away much of what chance in starting weights and batches does to a fit. The rows that a member holds out
tell it when to stop. Wide vector blocks and images are reduced to scores first, once for all members.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgmiv._io import enable_compilation_cache
from bgmiv.baselines.networks import MAX_ROWS, CovariateNet, has_wide_block, in_pieces
from bgmiv.data.folds import draw_folds
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray, warn_user
from bgmiv.data.query import Encoded, Query, Rows
from bgmiv.data.scaling import RoleScaling, ScaledData, Scaler
from bgmiv.data.schema import Schema
from bgmiv.diagnostics.held_out import held_out_values
from bgmiv.errors import ConfigError, DivergedError
from bgmiv.estimators.base import SeededEstimator
from bgmiv.estimators.fitted import MethodConfig, check_instrument, check_no_weights, check_one_number
from bgmiv.fitted import FittedMethod, HeldOutPredictions
from bgmiv.intervals import Floats
from bgmiv.preprocess.reduction import BlockReduction, FittedReduction
from bgmiv.progress import HistoryRow, Reporter, mean_history
from bgmiv.support import LinearSupport

__all__ = ["FittedMembers", "Member", "NetMember", "NetworkConfig", "NetworkEstimator", "fit_members"]

# Where the key of the folds branches off from the fit's key.
_FOLDS = 1_000_001
_HELD_OUT_SHARE = 0.1


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


class NetMember(Member):
    """A member whose g is one `CovariateNet` of the scaled treatment."""

    net: CovariateNet

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


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(MethodConfig):
    """What the configs of methods with networks share; a final subclass gives `fit` and `fit_member`.

    Args:
        members: how many members are trained; their predictions are averaged.
        held_out: the share of the rows that each member holds out, in whole groups; None: a tenth, none with a vector
            or image block.
        reduction: how wide vector blocks and images are reduced to scores; None leaves them as they are.
        scaling: how each role is scaled, after the reduction.
        use_instrument: False ignores the instruments.
    """

    members: int = 4
    held_out: float | None = None
    reduction: BlockReduction | None = BlockReduction()
    scaling: RoleScaling = field(default_factory=RoleScaling)
    use_instrument: bool = True

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ConfigError(f"members must be at least 1, got {self.members}.")
        if self.held_out is not None and not 0.0 <= self.held_out <= 0.5:
            raise ConfigError(f"held_out must lie between 0 and 0.5, got {self.held_out}.")

    @abstractmethod
    def fit_member(
        self,
        schema: Schema,
        train: ScaledData,
        held_out: ScaledData | None,
        groups: NDArray[np.integer] | None,
        key: Array,
        reporter: Reporter,
    ) -> Member:
        """One member, from reduced and scaled rows, those that it is trained on and those that it holds out.

        `groups` has the group of each row that it is trained on, None if rows are independent.
        """


@dataclass(frozen=True, eq=False)
class FittedMembers(FittedMethod):
    """A fitted method with networks: the average of its members. A final subclass says of which class they are.

    Attributes:
        schema, support: what the fit keeps of its data.
        config: the resolved config.
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


F = TypeVar("F", bound=FittedMembers)


def fit_members(fitted: type[F], config: NetworkConfig, data: IVData, seed: int, reporter: Reporter) -> F:
    """Reduce, scale, and train each member without its fold; members that diverge are left out unless all do.

    Raises:
        DataError: a method with networks cannot be fitted on such data.
        DivergedError: every member diverged.
    """
    enable_compilation_cache()
    key = jax.random.key(seed)
    method = fitted.__name__.removeprefix("Fitted")
    check_one_number(data, method)
    check_no_weights(data, method)
    check_instrument(data, method, use_instrument=config.use_instrument)
    reduction = config.reduction.fit(data) if config.reduction else FittedReduction(data.schema, {})
    reduced = reduction.apply(data)
    used = reduced if config.use_instrument else reduced.without_instruments()
    scaler = config.scaling.fit(used)
    rows = scaler.transform(used)
    share = _HELD_OUT_SHARE * (not has_wide_block(data.schema)) if config.held_out is None else config.held_out
    folds = draw_folds(data.n_rows, config.members, share, jax.random.fold_in(key, _FOLDS), data.groups)
    members: list[Member] = []
    left_out: list[np.ndarray] = []
    failure: DivergedError | None = None
    for i, own in enumerate([key] if config.members == 1 else jax.random.split(key, config.members)):
        train, held_out = _divided(rows, folds.rows(i))
        groups = None if data.groups is None else np.delete(data.groups, folds.rows(i))
        try:
            members.append(config.fit_member(reduced.schema, train, held_out, groups, own, reporter))
        except DivergedError as error:
            failure = error
        else:
            left_out.append(folds.rows(i))
    if failure is not None and not members:
        raise failure
    support = LinearSupport.fit(data)
    return fitted(data.schema, support, config, reduction, scaler, tuple(members), held_out_rows=tuple(left_out))


def _divided(rows: ScaledData, fold: np.ndarray) -> tuple[ScaledData, ScaledData | None]:
    """The rows outside a fold, and those inside if there are any, all in their own order."""
    if not len(fold):
        return rows, None
    inside = np.zeros(len(rows.x), bool)
    inside[fold] = True
    train, held_out = (ScaledData(*(values[part] for values in rows)) for part in (~inside, inside))
    return train, held_out


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkEstimator(SeededEstimator):
    """An estimator whose fitted result holds members and whose arguments left at None take the preset's value."""

    members: int | None = None
    held_out: float | None = None
    scaling: RoleScaling | None = None
    holdout: InitVar[float | None] = None

    def __post_init__(self, holdout: float | None) -> None:
        """Take the share of held-out rows by its old name."""
        if holdout is not None:
            warn_user(f"{type(self).__name__}(holdout=...) is deprecated; use held_out=, as in all methods.")
            self.held_out = holdout

    def _given(self, *names: str) -> dict[str, Any]:
        """Those of the arguments that are not None."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}
