"""BGM-IV as a user meets it; what holds for every method is in tests/contract/test_estimators.py."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

from bgmiv.covariates import CovariateConfig
from bgmiv.data import FixedAffine, Identity, IVData, RoleScaling
from bgmiv.designs import DemandDesign
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.bgmiv import BGMIV, PRESETS, BGMIVConfig, FittedBGMIV, paper_preset
from bgmiv.estimators.bgmiv_result import Member
from bgmiv.infer import LatentMap
from bgmiv.integrate import FiniteMixture, GaussHermite, MonteCarlo, QuasiMonteCarlo
from bgmiv.model import LatentLayout, ModelConfig
from bgmiv.train import Alternating, WarmStart

N = 60
RNG = np.random.default_rng(0)
W, V, U = RNG.normal(size=(3, N))
X = 5.0 + W + V + U
Y = 100.0 + 10.0 * (X + V + U)
QUERY = (X[:9], V[:9])


def tiny(config: BGMIVConfig) -> BGMIVConfig:
    """The same phases and rules with networks and a schedule of next to nothing."""
    shapes = CovariateConfig(
        dense_hidden=(8,),
        block_encoder_hidden=(8,),
        vector_features=(8, 4),
        vector_decoder_hidden=(8,),
        column_decoder_hidden=(8,),
    )
    return replace(
        config,
        batch_size=8,
        model=ModelConfig(treatment_hidden=(8,), outcome_hidden=(8,), covariates=shapes),
        warm_start=replace(config.warm_start, iterations=20, chunk=10),
        alternating=replace(config.alternating, epochs=2, chunk=1),
        latent_map=LatentMap(steps=5),
    )


@pytest.fixture(autouse=True)
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fit of the default preset is tiny here."""
    small = tiny(PRESETS["default"]())
    monkeypatch.setitem(PRESETS, "default", lambda: small)


@cache
def base() -> BGMIV:
    return BGMIV(random_state=3).fit(Y, X, instruments=W, covariates=V)


def refit(**changes: Any) -> np.ndarray:
    arguments = {"outcome": Y, "treatment": X, "instruments": W, "covariates": V, **changes}
    return BGMIV(random_state=3).fit(**arguments).predict(*QUERY)


class TestSeeds:
    def test_same_seed_same_predictions(self) -> None:
        np.testing.assert_array_equal(refit(), base().predict(*QUERY))

    def test_other_seed_other_predictions(self) -> None:
        other = clone(base()).set_params(random_state=4).fit(Y, X, instruments=W, covariates=V)
        assert not np.allclose(other.predict(*QUERY), base().predict(*QUERY))

    def test_a_drawn_seed_can_be_used_again(self) -> None:
        first = BGMIV().fit(Y, X, instruments=W, covariates=V)
        again = BGMIV(random_state=first.seed_).fit(Y, X, instruments=W, covariates=V)
        np.testing.assert_array_equal(first.predict(*QUERY), again.predict(*QUERY))


class TestContainers:
    @pytest.mark.parametrize("container", [list, pd.Series, pl.Series, lambda a: a[:, None]])
    def test_containers_of_the_same_numbers_give_the_same_fit(self, container: Any) -> None:
        got = refit(outcome=container(Y), treatment=container(X), instruments=container(W), covariates=container(V))
        np.testing.assert_array_equal(got, base().predict(*QUERY))

    def test_named_columns_are_asked_for_by_name(self) -> None:
        frame = pd.DataFrame({"y": Y, "x": X, "w": W, "v": V})
        model = BGMIV(random_state=3).fit(frame["y"], frame["x"], instruments=frame[["w"]], covariates=frame[["v"]])
        np.testing.assert_array_equal(model.predict(X[:9], frame[["v"]][:9]), base().predict(*QUERY))
        with pytest.raises(DataError, match="'v'"):
            model.predict(X[:9], frame[["w"]][:9])

    def test_single_precision_is_nearly_the_same(self) -> None:
        single = [values.astype(np.float32) for values in (Y, X, W, V)]
        got = refit(outcome=single[0], treatment=single[1], instruments=single[2], covariates=single[3])
        np.testing.assert_allclose(got, base().predict(*QUERY), atol=1e-2 * Y.std())


class TestWhatPredictionSees:
    def test_it_has_no_instruments_argument(self) -> None:
        for predict in (BGMIV.predict, FittedBGMIV.predict):
            assert list(inspect.signature(predict).parameters) == ["self", "treatment", "covariates"]

    def test_neither_treatment_network_nor_instruments_matter_after_the_fit(self) -> None:
        fitted = base().fitted_

        def strange_member(member: Member) -> Member:
            treatment = jax.tree.map(lambda leaf: leaf + 3.0, member.model.treatment)
            model = eqx.tree_at(lambda m: m.treatment, member.model, treatment)
            return replace(member, model=model, training_latents=np.zeros_like(member.training_latents))

        strange = replace(
            fitted,
            members=tuple(map(strange_member, fitted.members)),
            scaler=replace(fitted.scaler, instruments=Identity().fit(np.zeros((2, 1)))),
        )
        np.testing.assert_array_equal(strange.predict(*QUERY), fitted.predict(*QUERY))

    def test_latents_come_from_covariates_alone(self) -> None:
        assert list(inspect.signature(FittedBGMIV.latents).parameters) == ["self", "covariates", "member"]
        latents = base().fitted_.latents(V[:9])
        assert latents.shape == (9, base().fitted_.config.layout.dim)
        np.testing.assert_array_equal(latents, base().fitted_.latents(V[:9]))
        assert not np.allclose(latents, base().fitted_.latents(V[:9], member=1))

    def test_predictions_are_the_structural_mean_in_original_units(self) -> None:
        fitted = base().fitted_
        x = ((QUERY[0] - X.mean()) / X.std()).astype(np.float32)
        each = [
            np.asarray(jax.jit(jax.vmap(member.model.structural_mean))(x, fitted.latents(QUERY[1], member=i)))
            for i, member in enumerate(fitted.members)
        ]
        scaled = np.mean(each, axis=0)
        np.testing.assert_allclose(fitted.predict(*QUERY), Y.mean() + Y.std() * np.asarray(scaled), rtol=1e-5)

    def test_arguments_are_not_changed(self) -> None:
        treatment, covariates = X[:9].copy(), V[:9].copy()
        base().predict(treatment, covariates)
        np.testing.assert_array_equal(treatment, X[:9])
        np.testing.assert_array_equal(covariates, V[:9])

    def test_many_rows_are_the_small_pieces(self) -> None:
        rng = np.random.default_rng(1)
        treatment, covariates = 5.0 + rng.normal(size=20_000), rng.normal(size=20_000)
        whole = base().predict(treatment, covariates)
        for piece in (slice(0, 5), slice(4094, 4099), slice(19_990, 20_000)):
            np.testing.assert_allclose(
                whole[piece], base().predict(treatment[piece], covariates[piece]), atol=1e-4 * Y.std()
            )


class TestFits:
    def test_history_has_both_phases_with_finite_losses(self) -> None:
        rows = base().history_
        assert [(row.phase, row.step) for row in rows] == [
            ("warm start", 10),
            ("warm start", 20),
            ("alternating updates", 1),
            ("alternating updates", 2),
        ]
        assert all(np.isfinite(list(row.metrics.values())).all() for row in rows)
        assert all("loss" in row.metrics for row in rows)

    def test_the_fit_keeps_its_latents(self) -> None:
        fitted = base().fitted_
        assert len(fitted.members) == 4
        for member in fitted.members:
            assert member.training_latents.shape == (N, 20)
            assert np.isfinite(member.training_latents).all()
        assert fitted.training_latents is fitted.members[0].training_latents

    def test_the_twin_never_looks_at_the_instruments(self) -> None:
        twins = [
            BGMIV(use_instrument=False, random_state=3).fit(Y, X, instruments=instruments, covariates=V)
            for instruments in (W, W[::-1], np.column_stack([W**2, U]))
        ]
        for twin in twins[1:]:
            np.testing.assert_array_equal(twin.predict(*QUERY), twins[0].predict(*QUERY))
            for one, two in zip(
                jax.tree.leaves(twin.fitted_.model), jax.tree.leaves(twins[0].fitted_.model), strict=True
            ):
                np.testing.assert_array_equal(one, two)

    @pytest.mark.parametrize(("n", "epochs"), [(2, 1), (5, 0)])
    def test_a_handful_of_rows_is_enough(self, n: int, epochs: int) -> None:
        model = BGMIV(random_state=0, epochs=epochs).fit(Y[:n], X[:n], instruments=W[:n], covariates=V[:n])
        assert np.isfinite(model.predict(X, V)).all()

    def test_one_row_is_not(self) -> None:
        with pytest.raises(DataError, match="one row"):
            BGMIV().fit(Y[:1], X[:1], instruments=W[:1], covariates=V[:1])

    def test_given_scaling_is_used(self) -> None:
        scaling = RoleScaling(outcome=FixedAffine(100.0, 20.0), treatment=FixedAffine(5.0, 2.0))
        model = BGMIV(scaling=scaling, random_state=3).fit(Y, X, instruments=W, covariates=V)
        assert model.fitted_.scaler.outcome.scale[0] == 20.0
        assert model.fitted_.scaler.treatment.shift[0] == 5.0


@cache
def binary() -> BGMIV:
    treated = (W + U > 0.0).astype(float)
    return BGMIV(treatment_kind="binary", random_state=0).fit(Y, treated, instruments=W)


class TestBinaryTreatment:
    def test_both_arms_are_predicted(self) -> None:
        untreated, treated = binary().predict(0), binary().predict(1)
        assert untreated.shape == treated.shape == (1,)
        assert untreated != treated
        np.testing.assert_allclose(binary().predict([0, 1]), [untreated[0], treated[0]], rtol=1e-5)

    def test_nothing_between_the_arms_is(self) -> None:
        with pytest.raises(DataError, match="binary"):
            binary().predict(0.5)

    def test_the_treatment_is_not_scaled(self) -> None:
        assert (binary().fitted_.scaler.treatment.shift[0], binary().fitted_.scaler.treatment.scale[0]) == (0.0, 1.0)


@dataclass
class Spy:
    phases: list[str] = field(default_factory=list)

    def start(self, phase: str, total: int) -> None:
        self.phases.append(phase)

    def advance(self, steps: int, metrics: Any) -> None:
        pass

    def finish(self) -> None:
        pass


class TestSettings:
    def test_params_and_repr(self) -> None:
        model = BGMIV("paper", epochs=3, latent_layout=(1, 1, 1, 1), integration=GaussHermite(4), random_state=1)
        assert repr(model) == (
            "BGMIV(preset='paper', latent_layout=(1, 1, 1, 1), epochs=3, integration=GaussHermite(n_nodes=4), "
            "random_state=1)"
        )
        assert repr(BGMIV()) == "BGMIV()"
        twin = clone(model)
        assert twin.get_params() == model.get_params()
        assert twin.set_params(epochs=5).epochs == 5
        assert model.epochs == 3

    def test_every_argument_is_a_parameter(self) -> None:
        names = [name for name in inspect.signature(BGMIV.__init__).parameters if name != "self"]
        assert list(BGMIV().get_params()) == names

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"preset": "fast"}, r"preset.*default.*paper.*'fast'"),
            ({"preset": None}, r"preset.*None"),
            ({"latent_layout": (2, 2, 1)}, r"latent_layout.*four"),
            ({"latent_layout": (0, 0, 0, 0)}, "latent_layout"),
            ({"latent_layout": (2, -1, 1, 2)}, "latent_layout"),
            ({"latent_layout": (2, 1.5, 1, 2)}, "latent_layout"),
            ({"latent_layout": 7}, "latent_layout"),
            ({"batch_size": 1}, "batch_size"),
            ({"batch_size": "many"}, "batch_size"),
            ({"batch_size": 8.5}, "batch_size"),
            ({"members": 0}, "members"),
            ({"members": 2.0}, "members"),
            ({"members": True}, "members"),
            ({"held_out": -0.1}, "held_out"),
            ({"held_out": 0.6}, "held_out"),
            ({"held_out": float("nan")}, "held_out"),
            ({"held_out": "tenth"}, "held_out"),
            ({"held_out": True}, "held_out"),
            ({"epochs": -1}, "epochs"),
            ({"epochs": 2.5}, "epochs"),
            ({"warm_start_iterations": -1}, "iterations"),
            ({"warm_start_iterations": 1e3}, "iterations"),
            ({"integration": "gauss-hermite"}, "integration"),
            ({"scaling": "standardise"}, "scaling"),
            ({"random_state": -1}, "random_state"),
        ],
        ids=lambda value: str(value) if isinstance(value, dict) else "",
    )
    def test_bad_settings_name_the_argument(self, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            BGMIV(**{"random_state": 0, **settings}).fit(Y, X, instruments=W, covariates=V)

    def test_a_rule_for_another_treatment_is_refused_before_any_training(self) -> None:
        config, spy = replace(PRESETS["default"](), alternating=Alternating(integration=FiniteMixture())), Spy()
        data = IVData.from_arrays(Y, X, instruments=W, covariates=V)
        with pytest.raises(ConfigError, match=r"FiniteMixture.*discrete"):
            config.fit(data, jax.random.key(0), spy)
        assert spy.phases == []

    def test_arguments_reach_the_config(self) -> None:
        # Neither phase runs: what is looked at is settled before.
        model = BGMIV(
            latent_layout=(1, 1, 1, 1),
            batch_size=16,
            members=2,
            held_out=0.25,
            epochs=0,
            warm_start_iterations=0,
            integration=QuasiMonteCarlo(4),
        )
        config = model.fit(Y, X, instruments=W, covariates=V).fitted_.config
        assert config.layout == config.model.layout == LatentLayout(1, 1, 1, 1)
        assert config.batch_size == config.warm_start.batch_size == config.alternating.batch_size == 16
        assert (config.ensemble.members, config.ensemble.held_out) == (2, 0.25)
        assert (config.alternating.epochs, config.warm_start.iterations) == (0, 0)
        assert config.alternating.integration == QuasiMonteCarlo(4)


class TestPaperPreset:
    """Appendix B, tables of shared and benchmark-specific settings."""

    def test_shared_settings(self) -> None:
        config = paper_preset()
        warm, alternating, latent_map = config.warm_start, config.alternating, config.latent_map
        assert isinstance(warm, WarmStart)
        assert (warm.iterations, warm.learning_rate, warm.critic_steps) == (50_001, 2e-4, 5)
        assert (warm.gradient_penalty, warm.spread_penalty) == (10.0, 0.001)
        assert (alternating.epochs, alternating.learning_rate, alternating.latent_learning_rate) == (201, 1e-4, 1e-4)
        assert (alternating.pzv_weight, alternating.first_stage_warmup) == (0.5, 0)
        assert alternating.integration == MonteCarlo(1000)
        assert (latent_map.steps, latent_map.learning_rate) == (1000, 1e-4)
        assert config.model.treatment_hidden == config.model.outcome_hidden == (64, 32, 8)
        assert config.model.covariates.dense_hidden == (64,) * 5

    def test_settings_that_follow_the_covariates(self) -> None:
        rng = np.random.default_rng(0)
        demand = DemandDesign().sample(100, 0.5, 0).schema
        proxy = {"time": rng.normal(size=100), "proxy": rng.normal(size=(100, 4))}
        vector = IVData.from_arrays(*rng.normal(size=(2, 100)), instruments=rng.normal(size=100), covariates=proxy)
        for schema, layout, batch in (
            (demand, LatentLayout(2, 2, 1, 2), 64),
            (vector.schema, LatentLayout(2, 1, 1, 2), 32),
        ):
            config = paper_preset().resolved(schema, 1000)
            assert config.layout == config.model.layout == layout
            assert config.warm_start.batch_size == config.alternating.batch_size == batch
