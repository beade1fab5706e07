"""Members of a fit: what each leaves out, what becomes of one that fails, and the verdict on them all.

Nearly every fit here has the same shapes, a block of 24 noisy columns reduced to the one score behind them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.covariates import CovariateConfig
from bgmiv.data import Identity, IVData, RoleScaling
from bgmiv.data.reduction import BlockReduction
from bgmiv.designs import DemandDesign
from bgmiv.errors import DataError, DivergedError, FitWarning, NotFittedError
from bgmiv.estimators.bgmiv import BGMIV, PRESETS, BGMIVConfig, FittedBGMIV, default_preset
from bgmiv.train.ensemble import Ensemble
from bgmiv.train.phases import Trained

N, WIDTH, MEMBERS = 100, 24, 3
KEY = jax.random.key(4)


def tiny() -> BGMIVConfig:
    """The default preset with networks and a schedule of next to nothing, and three members of twenty held-out rows."""
    config = default_preset()
    covariates: CovariateConfig = replace(
        config.model.covariates, dense_hidden=(8,), dense_decoder_hidden=(8,), vector_features=(8, 4)
    )
    return replace(
        config,
        batch_size=16,
        model=replace(config.model, treatment_hidden=(8,), outcome_hidden=(8,), covariates=covariates),
        ensemble=Ensemble(members=MEMBERS, held_out=0.2),
        warm_start=replace(config.warm_start, iterations=12, chunk=4),
    )


CONFIG = tiny()


def draw(seed: int = 0, factors: int = 1, outcome_scale: float = 1.0) -> IVData:
    rng = np.random.default_rng(seed)
    w, u = rng.normal(size=(2, N))
    hidden = rng.normal(size=(N, factors))
    proxy = 50.0 + 3.0 * (hidden @ rng.normal(size=(factors, WIDTH)) + 0.5 * rng.normal(size=(N, WIDTH)))
    x = w + hidden[:, 0] + u
    y = 20.0 + 5.0 * (x + hidden[:, 0] + u)
    return IVData.from_arrays(outcome_scale * y, x, instruments=w, covariates={"proxy": proxy})


DATA = draw()
QUERY = (DATA.treatment[:9], {"proxy": DATA.covariates[:9]})


@cache
def fitted() -> FittedBGMIV:
    return CONFIG.fit(DATA, KEY)


def same(one: Any, two: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


class TestPredictions:
    def test_they_are_the_mean_over_members(self) -> None:
        each = fitted().predict_members(*QUERY)
        assert each.shape == (MEMBERS, 9)
        np.testing.assert_allclose(fitted().predict(*QUERY), each.mean(axis=0), rtol=1e-12)
        for i, member in enumerate(fitted().members):
            alone = replace(fitted(), members=(member,))
            np.testing.assert_array_equal(alone.predict(*QUERY), each[i])

    def test_members_differ(self) -> None:
        each = fitted().predict_members(*QUERY)
        for i in range(MEMBERS):
            assert np.abs(each[i] - each[i - 1]).max() > 1e-2 * DATA.outcome.std()

    def test_the_same_key_gives_the_same_members_and_another_key_others(self) -> None:
        each = fitted().predict_members(*QUERY)
        again, other = CONFIG.fit(DATA, KEY), CONFIG.fit(DATA, jax.random.key(5))
        np.testing.assert_array_equal(again.predict_members(*QUERY), each)
        assert again.verdict == fitted().verdict
        assert not np.allclose(other.predict_members(*QUERY), each)

    def test_history_is_the_mean_over_members(self) -> None:
        assert [row.step for row in fitted().history] == [4, 8, 12]
        for i, row in enumerate(fitted().history):
            losses = [member.history[i].metrics["loss"] for member in fitted().members]
            assert len(set(losses)) == MEMBERS
            assert row.metrics["loss"] == pytest.approx(np.mean(losses))
        assert fitted().verdict.evidence.n_steps == 12


class TestHeldOutRows:
    def test_each_member_leaves_out_rows_of_its_own(self) -> None:
        rows = [member.held_out_rows for member in fitted().members]
        assert [len(each) for each in rows] == [20, 20, 20]
        assert len(np.unique(np.concatenate(rows))) == 60

    def test_latents_are_in_the_order_of_the_data(self) -> None:
        for i, member in enumerate(fitted().members):
            latents = fitted().latents({"proxy": DATA.covariates}, member=i)
            np.testing.assert_allclose(member.training_latents, latents, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("held_out", [0.2, 0.4])
    def test_looks_are_at_rows_left_out_and_at_rows_trained_on(self, held_out: float) -> None:
        """With 40 rows of 100 left out, the middle member has nowhere 40 others in a run."""
        fit = fitted() if held_out == 0.2 else replace(CONFIG, ensemble=Ensemble(MEMBERS, held_out)).fit(DATA, KEY)
        y = (DATA.outcome - DATA.outcome.mean()) / DATA.outcome.std()
        left_out = [member.held_out_rows for member in fit.members]
        for member, rows in zip(fit.members, left_out, strict=True):
            assert member.held_out is not None
            assert member.held_out.outcome_variance == pytest.approx(np.var(y[rows]), rel=1e-4)
        if held_out == 0.4:
            # In the order of training the folds are 0-39, 33-72 and 60-99.
            assert [len(rows) for rows in left_out] == [40, 40, 40]
            beside = [
                np.setdiff1d(left_out[1], left_out[0]),
                np.setdiff1d(left_out[0], left_out[1]),
                np.setdiff1d(left_out[1], left_out[2]),
            ]
            # The first has room behind it for 40, the middle one for 33 before it.
            assert [len(rows) for rows in beside] == [33, 33, 27]
            middle = fit.members[1].training
            assert middle is not None
            assert middle.outcome_variance == pytest.approx(np.var(y[beside[1]]), rel=1e-4)

    def test_held_out_outcomes_teach_a_member_nothing(self) -> None:
        """With scaling fixed, only the fold of the first member is changed, and of all members only the first keeps."""
        fixed = replace(CONFIG, scaling=RoleScaling(outcome=Identity()))
        before = fixed.fit(DATA, KEY)
        rows = before.members[0].held_out_rows
        changed = DATA.outcome.copy()
        changed[rows] += 1e-3 * np.arange(20, dtype=changed.dtype)
        after = fixed.fit(replace(DATA, outcome=changed), KEY)
        assert same(before.members[0].model, after.members[0].model)
        assert not same(before.members[1].model, after.members[1].model)

    def test_without_held_out_rows_there_is_no_look(self) -> None:
        fit = replace(CONFIG, ensemble=Ensemble(MEMBERS)).fit(DATA, KEY)
        for member in fit.members:
            assert (member.held_out, member.training, len(member.held_out_rows)) == (None, None, 0)
        assert fit.verdict.level == "doubtful"
        assert "no rows were held out, so that the fit could not be checked." in fit.verdict.reasons


Change = Callable[[Trained], Trained]


def break_training(monkeypatch: pytest.MonkeyPatch, change: Change, times: int = 1) -> list[int]:
    """Change what training gives the first few times; the list counts its calls, with the members in each."""
    calls: list[int] = []
    real = BGMIVConfig._train

    def train(self: BGMIVConfig, *arguments: Any) -> Trained:
        trained = real(self, *arguments)
        calls.append(len(trained.latents))
        return change(trained) if len(calls) <= times else trained

    monkeypatch.setattr(BGMIVConfig, "_train", train)
    return calls


def diverged(*members: int) -> Change:
    """As if the losses of these members had become infinite in the second chunk."""

    def change(trained: Trained) -> Trained:
        rows = list(trained.history)
        loss = np.array(rows[1].metrics["loss"])
        loss[list(members)] = np.inf
        rows[1] = rows[1]._replace(metrics={**rows[1].metrics, "loss": loss})  # type: ignore[dict-item]
        return trained._replace(history=tuple(rows))

    return change


def shifted(by: float, *members: int) -> Change:
    """As if these members had learned outcomes that are off by so much."""

    def change(trained: Trained) -> Trained:
        bias = np.array(trained.model.outcome.outputs[0].bias)
        bias[list(members), 0] += by
        return trained._replace(
            model=eqx.tree_at(lambda m: m.outcome.outputs[0].bias, trained.model, jnp.asarray(bias))
        )

    return change


class TestFailures:
    @pytest.mark.parametrize("change", [diverged(1), shifted(30.0, 1)], ids=["diverged", "far worse than the others"])
    def test_a_member_that_fails_is_trained_again(self, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
        calls = break_training(monkeypatch, change)
        fit = CONFIG.fit(DATA, KEY)
        assert calls == [3, 1]
        assert [member.attempts for member in fit.members] == [1, 2, 1]
        for i in (0, 2):
            assert same(fit.members[i].model, fitted().members[i].model)
        assert not same(fit.members[1].model, fitted().members[1].model)
        np.testing.assert_array_equal(fit.members[1].held_out_rows, fitted().members[1].held_out_rows)
        assert np.isfinite(fit.predict(*QUERY)).all()
        assert (fit.verdict.evidence.n_members, fit.verdict.evidence.n_failed) == (3, 0)

    def test_one_that_fails_at_every_attempt_is_left_out_and_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ensemble = replace(CONFIG.ensemble, attempts=3)

        def always(trained: Trained) -> Trained:
            return diverged(1 if len(trained.latents) == MEMBERS else 0)(trained)

        calls = break_training(monkeypatch, always, times=99)
        fit = replace(CONFIG, ensemble=ensemble).fit(DATA, KEY)
        # One that diverges by itself ends its phase; here only its record says so.
        assert calls == [3, 1, 1]
        assert len(fit.members) == 2
        np.testing.assert_array_equal(fit.predict(*QUERY), np.mean(fitted().predict_members(*QUERY)[[0, 2]], axis=0))
        assert (fit.verdict.evidence.n_members, fit.verdict.evidence.n_failed) == (2, 1)
        assert "1 of 3 members failed at every attempt." in fit.verdict.reasons
        assert fit.verdict.level != "good"

    def test_all_of_them_are_an_error(self) -> None:
        fixed = replace(CONFIG, scaling=RoleScaling(outcome=Identity()))
        with pytest.raises(DivergedError, match="warm start"):
            fixed.fit(draw(outcome_scale=1e30), KEY)

    def test_predictions_that_are_no_numbers_for_any_member_are_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Training may break in its very last step, which no loss has seen."""

        def change(trained: Trained) -> Trained:
            return shifted(np.nan, *range(len(trained.latents)))(trained)

        break_training(monkeypatch, change, times=99)
        with pytest.raises(DivergedError, match="warm start"):
            CONFIG.fit(DATA, KEY)

    def test_without_held_out_rows_a_diverged_member_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = break_training(monkeypatch, diverged(2), times=99)
        fit = replace(CONFIG, ensemble=Ensemble(MEMBERS)).fit(DATA, KEY)
        assert calls == [3]
        assert len(fit.members) == 2
        assert fit.verdict.evidence.n_failed == 1


class TestReduction:
    def test_wide_blocks_are_reduced_before_anything_else(self) -> None:
        assert fitted().schema == DATA.schema
        assert fitted().reduction.schema.n_covariates == fitted().model.covariates.encoder.features.width == 1
        assert fitted().predict(*QUERY).shape == (9,)

    def test_it_is_the_fit_of_the_scores(self) -> None:
        reduction = BlockReduction().fit(DATA)
        by_hand = replace(CONFIG, reduction=None).fit(reduction.apply(DATA), KEY)
        scores = {"proxy[pc1]": reduction.transform(DATA.covariates[:9])[:, 0]}
        np.testing.assert_allclose(fitted().predict(*QUERY), by_hand.predict(QUERY[0], scores), rtol=1e-6)

    @pytest.mark.parametrize("width", [1, WIDTH - 1, WIDTH + 1])
    def test_queries_of_another_width_are_refused(self, width: int) -> None:
        with pytest.raises(DataError, match="proxy"):
            fitted().predict(0.0, {"proxy": np.zeros((9, width))})

    def test_data_sets_that_keep_other_scores_are_not_fitted_together(self) -> None:
        with pytest.raises(DataError, match=r"data sets 0 and 1 differ in .* 'proxy'.*one by one"):
            CONFIG.fit_many([DATA, draw(1, factors=2)], [KEY, KEY])


class TestFace:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(PRESETS, "default", tiny)

    def test_members_and_held_out_rows_are_arguments(self) -> None:
        model = self.fit(BGMIV(random_state=4))
        np.testing.assert_array_equal(model.predict(*QUERY), fitted().predict(*QUERY))
        assert model.verdict_ == fitted().verdict
        assert (
            len(self.fit(BGMIV(members=MEMBERS, held_out=0.3, random_state=4)).fitted_.members[0].held_out_rows) == 30
        )

    def test_without_held_out_rows_there_is_doubt_and_no_warning(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = self.fit(BGMIV(held_out=0, random_state=4))
        assert model.verdict_.level == "doubtful"

    def test_a_fit_of_next_to_nothing_is_told_so(self) -> None:
        with pytest.warns(FitWarning, match=r"the fit of this BGMIV is (doubtful|failed)") as caught:
            self.fit(BGMIV(random_state=4))
        assert str(caught[0].message).endswith(str(fitted().verdict))

    def test_there_is_no_verdict_before_the_fit(self) -> None:
        with pytest.raises(NotFittedError):
            BGMIV().verdict_

    @staticmethod
    def fit(model: BGMIV) -> BGMIV:
        return model.fit(
            DATA.outcome, DATA.treatment, instruments=DATA.instruments, covariates={"proxy": DATA.covariates}
        )


@pytest.mark.slow
def test_honest_instruments_pass_and_shuffled_ones_do_not() -> None:
    """The default preset, with fewer iterations and members than it has of its own."""
    data = DemandDesign().sample(500, 0.5, 0)

    def fit(instruments: np.ndarray) -> BGMIV:
        model = BGMIV(members=2, warm_start_iterations=600, random_state=0)
        return model.fit(data.outcome, data.treatment, instruments=instruments, covariates=data.covariates)

    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        honest = fit(data.instruments)
    assert honest.verdict_.level == "good"
    evidence = honest.verdict_.evidence
    assert (evidence.n_members, evidence.n_held_out, evidence.n_failed, evidence.n_steps) == (2, 100, 0, 600)
    assert evidence.first_stage_gain is not None
    assert evidence.first_stage_gain > 1.0
    with pytest.warns(FitWarning, match="the instruments add"):
        shuffled = fit(np.random.default_rng(0).permutation(data.instruments))
    assert shuffled.verdict_.level != "good"
    assert any("instruments" in reason for reason in shuffled.verdict_.reasons)
