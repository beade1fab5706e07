from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bgmiv
from bgmiv.baselines.deepgmm import DeepGMM
from bgmiv.baselines.deepiv import DeepIV
from bgmiv.baselines.dfiv import DFIV
from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import Schema
from bgmiv.designs import VectorProxyDesign
from bgmiv.effects import predict
from bgmiv.errors import ConfigError, DivergedError
from bgmiv.estimators.members import FittedMembers, Member, MemberRows, NetworkConfig
from bgmiv.preprocess.reduction import BlockReduction
from bgmiv.progress import HistoryRow, Reporter

TINY: dict[type, dict[str, Any]] = {
    DeepIV: {"epochs": 2, "batch_size": 40, "hidden": (6,), "n_components": 2},
    DFIV: {"epochs": 2},
    DeepGMM: {"updates": 4, "batch_size": 16, "hidden": (6,)},
}


@dataclass(frozen=True, eq=False)
class Mean(Member):
    """The mean outcome of the rows that a member was trained on."""

    mean: float
    held_out: np.ndarray
    history: tuple[HistoryRow, ...] = ()

    def encode(self, v: np.ndarray) -> np.ndarray:
        return v

    def structural(self, x: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        return np.full(len(x), self.mean)


@dataclass(frozen=True, eq=False)
class FittedMeans(FittedMembers):
    """Fitted means."""

    members: tuple[Mean, ...]


@dataclass(frozen=True, kw_only=True)
class Means(NetworkConfig):
    """A method without networks; the members of some keys diverge."""

    fitted_class = FittedMeans

    diverged: int = 0
    reduction: BlockReduction | None = None

    def fit_member(self, schema: Schema, rows: MemberRows, key: jax.Array, reporter: Reporter) -> Mean:
        train, held_out, _ = rows
        keys = jax.random.key_data(jax.random.split(jax.random.key(1), self.members))
        if np.any(np.all(keys[: self.diverged] == jax.random.key_data(key), axis=1)):
            raise DivergedError("training", 1)
        y = np.zeros(0) if held_out is None else held_out.y
        assert len(train.y) + len(y) == 400
        history = (HistoryRow("training", 1, {"loss": float(train.y.mean())}),)
        return Mean(float(train.y.mean()), np.sort(y), history)


@pytest.fixture(scope="module")
def data() -> IVData:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, 400))
    return IVData.from_arrays(w + v - u, w + u, instruments=w, covariates=v)


def test_members_hold_out_different_rows_and_are_averaged(data: IVData) -> None:
    fitted = Means().fit(data, 1)
    held_out = np.concatenate([member.held_out for member in fitted.members])
    assert fitted.n_members == 4
    assert len(held_out) == len(np.unique(held_out)) == 160
    expected = fitted.scaler.outcome.inverse(np.mean([member.mean for member in fitted.members]))
    np.testing.assert_allclose(predict(fitted, 0.0, np.zeros(3)), expected, rtol=1e-6)
    assert fitted.history[0].metrics["loss"] == pytest.approx(np.mean([member.mean for member in fitted.members]))


def test_with_a_wide_block_nothing_is_held_out_unless_asked() -> None:
    sample = VectorProxyDesign(vector_dim=3).sample(400, 0.5, 0)
    for config, count in ((Means(), 0), (Means(held_out=0.1), 40)):
        fitted = config.fit(sample, 1)
        assert [len(member.held_out) for member in fitted.members] == [count] * 4


def test_members_that_diverge_are_left_out_unless_all_do(data: IVData) -> None:
    assert Means(diverged=3).fit(data, 1).n_members == 1
    with pytest.raises(DivergedError, match="'training' by step 1"):
        Means(diverged=4).fit(data, 1)


@pytest.mark.parametrize("method", TINY)
def test_scores_of_wide_blocks_are_made_at_fit_and_at_prediction_and_saved(method: Any, tmp_path: Path) -> None:
    sample = VectorProxyDesign(vector_dim=40).sample(250, 0.5, 0)
    price, group = sample.treatment, sample.covariates
    names = [block.name for block in sample.schema.blocks]
    covariates = {
        name: group[:, block.start : block.stop] for name, block in zip(names, sample.schema.blocks, strict=True)
    }
    covariates = {name: values[:, 0] if values.shape[1] == 1 else values for name, values in covariates.items()}
    model = method(members=2, held_out=0.1, random_state=0, **TINY[method])
    model.fit(sample.outcome, price, instruments=sample.instruments, covariates=covariates)
    fitted = model.fitted_
    assert fitted.n_members == 2
    assert isinstance(fitted.config.reduction, BlockReduction)
    assert fitted.reduction.schema.n_covariates < 20 < fitted.schema.n_covariates
    model.save(tmp_path / "model")
    again = bgmiv.load(tmp_path / "model")
    assert again.fitted_.n_members == 2
    few = {name: values[:5] for name, values in covariates.items()}
    np.testing.assert_array_equal(again.predict(price[:5], few), model.predict(price[:5], few))


@pytest.mark.parametrize("bad", [{"members": 0}, {"held_out": 0.6}])
@pytest.mark.parametrize("method", TINY)
def test_refuses_bad_settings(method: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        method(**bad)._config()


def test_the_published_settings_have_one_member_and_hold_nothing_out() -> None:
    for method in TINY:
        config = method(preset="paper")._config()
        assert (config.members, config.held_out, config.reduction) == (1, 0.0, None)
        assert replace(config, members=3) == method(preset="paper", members=3)._config()
