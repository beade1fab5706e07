"""A fit of several members: whose rows are held out, which of them fail, and what is left of the fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.bgm import members as members_module
from bgmiv.bgm.config import BGMIVConfig, Ensemble
from bgmiv.bgm.fitted import FittedNetworks
from bgmiv.bgm.members import Trained
from bgmiv.data import Identity, IVData, RoleScaling
from bgmiv.data.query import Query, query_at
from bgmiv.diagnostics.verdict import verdict_of
from bgmiv.effects import predict
from bgmiv.errors import DataError, DivergedError
from bgmiv.preprocess.reduction import BlockReduction

MEMBERS = 3
SEED = 4


@pytest.fixture(scope="module")
def query(fitted: FittedNetworks, proxy_data: IVData) -> Query:
    return query_at(fitted.schema, proxy_data.treatment[:9], {"proxy": proxy_data.covariates[:9]})


def members_at(fitted: FittedNetworks, query: Query) -> np.ndarray:
    return fitted.members_at(query)[:, 0]


class TestMembers:
    def test_predictions_are_their_mean(self, fitted: FittedNetworks, query: Query) -> None:
        each = members_at(fitted, query)
        assert each.shape == (MEMBERS, 9)
        np.testing.assert_allclose(fitted.at(query)[0], each.mean(axis=0), rtol=1e-12)
        alone = replace(fitted, members=fitted.members[1:2])
        np.testing.assert_array_equal(alone.at(query)[0], each[1])
        assert fitted.n_members == MEMBERS

    def test_history_is_the_mean_over_members(self, fitted: FittedNetworks) -> None:
        assert [(row.phase, row.step) for row in fitted.history] == [("joint training", step) for step in (4, 8, 12)]
        for i, row in enumerate(fitted.history):
            losses = [member.history[i].metrics["loss"] for member in fitted.members]
            assert len(set(losses)) == MEMBERS
            assert row.metrics["loss"] == pytest.approx(np.mean(losses))
        assert fitted.evidence.n_steps == 12


class TestHeldOutRows:
    def test_each_member_holds_out_rows_of_its_own(self, fitted: FittedNetworks) -> None:
        rows = [member.held_out_rows for member in fitted.members]
        assert [len(each) for each in rows] == [20, 20, 20]
        assert len(np.unique(np.concatenate(rows))) == 60

    def test_losses_are_on_held_out_rows_and_on_rows_trained_on(self, small: BGMIVConfig, proxy_data: IVData) -> None:
        """With 40 rows of 100 held out, the middle member has nowhere 40 others in a run."""
        fit = replace(small, ensemble=Ensemble(MEMBERS, 0.4)).fit(proxy_data, SEED)
        y = (proxy_data.outcome - proxy_data.outcome.mean()) / proxy_data.outcome.std()
        left_out = [member.held_out_rows for member in fit.members]
        for member, rows in zip(fit.members, left_out, strict=True):
            assert member.held_out is not None
            assert member.held_out.outcome_variance == pytest.approx(np.var(y[rows]), rel=1e-4)
        # In the order of training the folds are 0-39, 33-72 and 60-99: before the middle one there is room for 33.
        beside = np.setdiff1d(left_out[0], left_out[1])
        middle = fit.members[1].training
        assert middle is not None
        assert middle.outcome_variance == pytest.approx(np.var(y[beside]), rel=1e-4)

    def test_held_out_outcomes_teach_a_member_nothing(
        self, small: BGMIVConfig, proxy_data: IVData, same: Callable[[Any, Any], bool]
    ) -> None:
        fixed = replace(small, scaling=RoleScaling(outcome=Identity()))
        before = fixed.fit(proxy_data, SEED)
        changed = proxy_data.outcome.copy()
        changed[before.members[0].held_out_rows] += 1e-3 * np.arange(20, dtype=changed.dtype)
        after = fixed.fit(replace(proxy_data, outcome=changed), SEED)
        assert same(before.members[0].model, after.members[0].model)
        assert not same(before.members[1].model, after.members[1].model)

    def test_each_is_predicted_by_the_member_that_held_it_out(self, fitted: FittedNetworks, proxy_data: IVData) -> None:
        from bgmiv.data.query import rows_of

        rows = rows_of(fitted.schema, proxy_data)
        found = fitted.held_out_predictions(proxy_data, rows, 30)
        assert found is not None
        assert len(found.rows) == 30
        own = fitted.members_at(Query(proxy_data.treatment[None], rows))[:, 0]
        for row, value in zip(found.rows, found.values, strict=True):
            (owner,) = (i for i, member in enumerate(fitted.members) if row in member.held_out_rows)
            assert value == pytest.approx(own[owner, row], rel=1e-5)


Change = Callable[[Trained], Trained]


def n_members(trained: Trained) -> int:
    return len(trained.model.outcome.outputs[0].bias)


def break_training(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Change what training gives."""
    real = members_module.train
    monkeypatch.setattr(members_module, "train", lambda *arguments: change(real(*arguments)))


def diverged(*members: int) -> Change:
    """As if the losses of these members had become infinite in the second chunk."""

    def change(trained: Trained) -> Trained:
        rows = list(trained.history)
        loss: Any = list(rows[1].metrics["loss"])  # type: ignore[call-overload]
        for i in members:
            loss[i] = np.inf
        rows[1] = rows[1]._replace(metrics={**rows[1].metrics, "loss": loss})
        return trained._replace(history=tuple(rows))

    return change


def shifted(by: float, *members: int) -> Change:
    """As if these members had learned outcomes that are off by so much."""

    def change(trained: Trained) -> Trained:
        bias = np.array(trained.model.outcome.outputs[0].bias)
        bias[list(members), 0] += by
        model = eqx.tree_at(lambda m: m.outcome.outputs[0].bias, trained.model, jnp.asarray(bias))
        return trained._replace(model=model)

    return change


class TestFailures:
    @pytest.mark.parametrize("change", [diverged(1), shifted(30.0, 1)], ids=["diverged", "far worse than the others"])
    def test_a_member_that_fails_is_left_out(
        self,
        monkeypatch: pytest.MonkeyPatch,
        small: BGMIVConfig,
        fitted: FittedNetworks,
        proxy_data: IVData,
        query: Query,
        change: Change,
    ) -> None:
        break_training(monkeypatch, change)
        fit = small.fit(proxy_data, SEED)
        np.testing.assert_allclose(fit.at(query)[0], members_at(fitted, query)[[0, 2]].mean(axis=0), rtol=1e-12)
        assert (fit.evidence.n_members, fit.evidence.n_failed) == (2, 1)
        assert any("for 33%" in reason for reason in verdict_of(fit).reasons)
        assert verdict_of(fit).severity != "good"

    def test_all_of_them_are_an_error(self, small: BGMIVConfig, huge_outcomes: IVData) -> None:
        fixed = replace(small, scaling=RoleScaling(outcome=Identity()))
        with pytest.raises(DivergedError, match="joint training"):
            fixed.fit(huge_outcomes, SEED)

    def test_predictions_that_are_no_numbers_are_an_error(
        self, monkeypatch: pytest.MonkeyPatch, small: BGMIVConfig, proxy_data: IVData
    ) -> None:
        """Training may break in its very last step, which no loss has seen."""
        break_training(monkeypatch, lambda t: shifted(np.nan, *range(n_members(t)))(t))
        with pytest.raises(DivergedError, match="joint training"):
            small.fit(proxy_data, SEED)

    def test_without_held_out_rows_a_diverged_member_is_left_out(
        self, monkeypatch: pytest.MonkeyPatch, small: BGMIVConfig, proxy_data: IVData
    ) -> None:
        break_training(monkeypatch, diverged(2))
        fit = replace(small, ensemble=Ensemble(MEMBERS)).fit(proxy_data, SEED)
        assert (fit.n_members, fit.evidence.n_failed) == (2, 1)
        assert [(m.held_out, m.training, len(m.held_out_rows)) for m in fit.members] == [(None, None, 0)] * 2


def test_wide_blocks_are_reduced_before_anything_else(
    small: BGMIVConfig, fitted: FittedNetworks, proxy_data: IVData, query: Query
) -> None:
    assert fitted.schema == proxy_data.schema
    assert fitted.reduction.schema.n_covariates == fitted.model.covariates.encoder.features.width == 1
    reduction = BlockReduction().fit(proxy_data)
    by_hand = replace(small, reduction=None).fit(reduction.apply(proxy_data), SEED)
    scores = {"proxy[pc1]": reduction.transform(proxy_data.covariates[:9])[:, 0]}
    np.testing.assert_allclose(fitted.at(query)[0], predict(by_hand, query.treatment[0], scores), rtol=1e-6)
    with pytest.raises(DataError, match="proxy"):
        predict(fitted, 0.0, {"proxy": np.zeros((9, 23))})


def test_networks_are_not_trained_on_a_handful_of_rows() -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 60))
    few = IVData.from_arrays((w + 2.0 * u)[:5], (w + u)[:5], instruments=w[:5])
    weighted = IVData.from_arrays(
        w + 2.0 * u, w + u, instruments=w, sample_weight=(np.arange(60) < 49).astype(np.float64)
    )
    for data, n in ((few, 5), (weighted, 49)):
        with pytest.raises(DataError, match=f"at least 50 rows, got {n}"):
            BGMIVConfig().fit(data, 0)
