"""BGM-IV as a user meets it; what holds for every method is in tests/contract/test_estimators.py."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from sklearn.base import clone

from bgmiv.bgm.config import (
    EGM,
    Alternating,
    BGMIVConfig,
    CovariateConfig,
    Ensemble,
    LatentLayout,
    LatentMap,
    paper_preset,
)
from bgmiv.bgm.estimator import BGMIV, PRESETS
from bgmiv.bgm.fitted import FittedNetworks
from bgmiv.bgm.members import Member
from bgmiv.bgm.resolve import resolve
from bgmiv.data import FixedAffine, Identity, IVData, RoleScaling
from bgmiv.designs import DemandDesign
from bgmiv.effects import predict
from bgmiv.errors import ConfigError, DataError, FitWarning
from bgmiv.integrate import FiniteMixture, GaussHermite, MonteCarlo, QuasiMonteCarlo
from bgmiv.nn.settings import ImageConfig
from bgmiv.sieve.fit import SieveConfig

N = 60
RNG = np.random.default_rng(0)
W, V, U = RNG.normal(size=(3, N))
X = 5.0 + W + V + U
Y = 100.0 + 10.0 * (X + V + U)
QUERY = (X[:9], V[:9])


@pytest.fixture(scope="module")
def both_phases(small: BGMIVConfig) -> BGMIVConfig:
    return replace(
        small,
        alternating=replace(small.alternating, epochs=2, chunk=1, integration=GaussHermite(2)),
        latents=LatentMap(steps=5),
    )


@pytest.fixture(autouse=True)
def small_default(both_phases: BGMIVConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fit of the default preset is tiny here, and has both phases."""
    monkeypatch.setitem(PRESETS, "default", lambda: both_phases)


def fit(**settings: Any) -> BGMIV:
    return BGMIV(**{"random_state": 3, **settings}).fit(Y, X, instruments=W, covariates=V)


@pytest.fixture(scope="module")
def base(both_phases: BGMIVConfig) -> BGMIV:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "default", lambda: both_phases)
        return fit()


class TestFits:
    def test_the_seed_decides_and_a_drawn_one_can_be_used_again(self, base: BGMIV) -> None:
        np.testing.assert_array_equal(fit().predict(*QUERY), base.predict(*QUERY))
        other = clone(base).set_params(random_state=None).fit(Y, X, instruments=W, covariates=V)
        assert not np.allclose(other.predict(*QUERY), base.predict(*QUERY))
        np.testing.assert_array_equal(fit(random_state=other.seed_).predict(*QUERY), other.predict(*QUERY))

    def test_history_has_both_phases_with_finite_losses(self, base: BGMIV) -> None:
        assert [(row.phase, row.step) for row in base.history_] == [
            *(("joint training", step) for step in (4, 8, 12)),
            ("alternating updates", 1),
            ("alternating updates", 2),
        ]
        assert all(np.isfinite(list(row.metrics.values())).all() for row in base.history_)

    def test_given_scaling_is_used(self) -> None:
        scaling = RoleScaling(outcome=FixedAffine(100.0, 20.0), treatment=FixedAffine(5.0, 2.0))
        fitted = fit(scaling=scaling, iterations=0, epochs=0).fitted_
        assert (fitted.scaler.outcome.scale[0], fitted.scaler.treatment.shift[0]) == (20.0, 5.0)

    def test_a_binary_treatment_is_not_scaled_and_has_two_arms(self) -> None:
        treated = (W + U > 0.0).astype(float)
        model = BGMIV(treatment_kind="binary", iterations=0, epochs=0, random_state=0).fit(Y, treated, instruments=W)
        untreated, treated_mean = model.predict(0), model.predict(1)
        assert untreated != treated_mean
        np.testing.assert_allclose(model.predict([0, 1]), [untreated[0], treated_mean[0]], rtol=1e-5)
        assert (model.fitted_.scaler.treatment.shift[0], model.fitted_.scaler.treatment.scale[0]) == (0.0, 1.0)
        with pytest.raises(DataError, match="binary"):
            model.predict(0.5)


class TestVerdicts:
    @pytest.mark.parametrize("n", [50, 60])
    def test_a_fit_without_held_out_rows_warns(self, n: int) -> None:
        """Twenty rows are held out at least, or none: of few rows there are none to check the fit on."""
        model = BGMIV(iterations=0, epochs=0, random_state=0)
        with pytest.warns(FitWarning, match="No rows were held out, so the fit could not be checked"):
            model.fit(Y[:n], X[:n], instruments=W[:n], covariates=V[:n])
        assert model.verdict_ is not None
        assert model.verdict_.severity == "doubtful"
        assert np.isfinite(model.predict(X, V)).all()

    def test_a_short_fit_warns(self) -> None:
        with pytest.warns(FitWarning, match="This fit failed its held-out checks; do not use it") as caught:
            model = fit(held_out=0.4)
        # What training shows is known at once; the moment condition is looked at when asked for.
        (message,) = (str(one.message) for one in caught if one.category is FitWarning)
        known = message.split(" Not measured")[0]
        assert known.split("do not use it. ")[1].split(". ")[0] in model.verdict_.sentence


class TestWhatPredictionSees:
    def test_neither_treatment_network_nor_instruments_matter_after_the_fit(self, base: BGMIV) -> None:
        fitted = base.fitted_

        def strange_member(member: Member) -> Member:
            treatment = jax.tree.map(lambda leaf: leaf + 3.0, member.model.treatment)
            model = eqx.tree_at(lambda m: m.treatment, member.model, treatment)
            return replace(member, model=model)

        strange = replace(
            fitted,
            members=tuple(map(strange_member, fitted.members)),
            scaler=replace(fitted.scaler, instruments=Identity().fit(np.zeros((2, 1)))),
        )
        np.testing.assert_array_equal(predict(strange, *QUERY), predict(fitted, *QUERY))
        assert list(inspect.signature(FittedNetworks.latents).parameters) == ["self", "covariates", "member"]

    def test_predictions_are_the_structural_mean_in_original_units(self, base: BGMIV) -> None:
        fitted = base.fitted_
        x = ((QUERY[0] - X.mean()) / X.std()).astype(np.float32)
        each = [
            np.asarray(jax.jit(jax.vmap(member.model.structural_mean))(x, fitted.latents(QUERY[1], member=i)))
            for i, member in enumerate(fitted.members)
        ]
        np.testing.assert_allclose(base.predict(*QUERY), Y.mean() + Y.std() * np.mean(each, axis=0), rtol=1e-5)


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"preset": "fast"}, r"preset.*default.*paper.*'fast'"),
            ({"latent_layout": (2, 2, 1)}, r"latent_layout.*four"),
            ({"latent_layout": (0, 0, 0, 0)}, "latent_layout"),
            ({"latent_layout": (2, 1.5, 1, 2)}, "latent_layout"),
            ({"latent_layout": 7}, "latent_layout"),
            ({"batch_size": 1}, "batch_size"),
            ({"batch_size": "many"}, "batch_size"),
            ({"members": 0}, "members"),
            ({"members": True}, "members"),
            ({"held_out": 0.6}, "held_out"),
            ({"held_out": float("nan")}, "held_out"),
            ({"held_out": "tenth"}, "held_out"),
            ({"epochs": 2.5}, "epochs"),
            ({"iterations": -1}, "iterations"),
            ({"integration": "gauss-hermite"}, "integration"),
            ({"latents": "mode"}, "latents"),
            ({"scaling": "standardise"}, "scaling"),
            ({"random_state": -1}, "random_state"),
            ({"checkpoint": "folder", "random_state": None}, "checkpoint needs a random_state"),
        ],
        ids=str,
    )
    def test_bad_settings_name_the_argument(self, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            fit(**settings)

    def test_a_rule_for_another_treatment_is_refused(self) -> None:
        config = replace(PRESETS["default"](), alternating=Alternating(integration=FiniteMixture()))
        with pytest.raises(ConfigError, match=r"FiniteMixture.*discrete"):
            config.fit(IVData.from_arrays(Y, X, instruments=W, covariates=V), 0)

    def test_arguments_reach_the_config(self) -> None:
        settings = {"latent_layout": (1, 1, 1, 1), "batch_size": 16, "members": 2, "held_out": 0.25}
        # Neither phase runs: what is compared is resolved before.
        config = fit(**settings, epochs=0, iterations=0, integration=QuasiMonteCarlo(4)).fitted_.config
        assert config.layout == config.model.layout == LatentLayout(1, 1, 1, 1)
        assert config.batch_size == config.initial.batch_size == config.alternating.batch_size == 16
        assert (config.ensemble.members, config.ensemble.held_out) == (2, 0.25)
        assert (config.alternating.epochs, config.initial.iterations) == (0, 0)
        assert config.alternating.integration == QuasiMonteCarlo(4)


class TestPaperPreset:
    """Appendix B, tables of shared and benchmark-specific settings."""

    def test_shared_settings(self) -> None:
        config = paper_preset()
        egm, alternating, latents = config.initial, config.alternating, config.latents
        assert isinstance(egm, EGM)
        assert isinstance(latents, LatentMap)
        assert (egm.iterations, egm.learning_rate, egm.critic_steps) == (50_001, 2e-4, 5)
        assert (egm.gradient_penalty, egm.spread_penalty) == (10.0, 0.001)
        assert (alternating.epochs, alternating.learning_rate, alternating.latent_learning_rate) == (201, 1e-4, 1e-4)
        assert alternating.pzv_weight == 0.5
        assert alternating.integration == MonteCarlo(1000)
        assert (latents.steps, latents.learning_rate) == (1000, 1e-4)
        assert config.model.treatment_hidden == config.model.outcome_hidden == (64, 32, 8)
        covariates = CovariateConfig()
        assert covariates.dense_hidden == (64,) * 5
        assert covariates.features.images == ImageConfig(features="conv", shift=0, noise=0.0, dropout=0.1)
        assert covariates.image_filters == (128, 64, 32)

    @pytest.mark.parametrize(
        ("covariates", "layout", "batch"),
        [
            (RNG.normal(size=(N, 2)), (2, 2, 1, 2), 64),
            ({"time": V, "proxy": RNG.normal(size=(N, 4))}, (2, 1, 1, 2), 32),
            ({"photo": RNG.random((N, 3, 3))}, (2, 1, 1, 2), 32),
        ],
        ids=["columns", "vector", "image"],
    )
    def test_settings_that_follow_the_covariates(
        self, covariates: Any, layout: tuple[int, int, int, int], batch: int
    ) -> None:
        data = IVData.from_arrays(Y, X, instruments=W, covariates=covariates)
        config = resolve(paper_preset(), data.take(np.resize(np.arange(N), 100)), np.random.default_rng(0))
        assert config.layout == config.model.layout == LatentLayout(*layout)
        assert config.initial.batch_size == config.alternating.batch_size == batch


MIXED: dict[str, Any] = {
    "age": V[:N],
    "photo": RNG.integers(0, 256, size=(N, 16, 16, 3)),
    "text": RNG.normal(size=(N, 32)),
}


class TestBlocks:
    def test_columns_images_and_vectors_at_once(self) -> None:
        model = BGMIV(iterations=3, epochs=0, members=2, batch_size=4, latents="encoder", random_state=0)
        model.fit(Y[:N], X[:N], instruments=W[:N], covariates=MIXED)
        widths = [block.width for block in model.fitted_.reduction.schema.blocks]
        # Pictures are reduced to scores, and text in which no component stands out is what it was.
        assert widths[1] < 768
        assert widths[::2] == [1, 32]
        got = model.predict(5.5, {name: values[:5] for name, values in MIXED.items()})
        assert got.shape == (5,)
        assert np.isfinite(got).all()
        with pytest.raises(DataError, match="photo"):
            model.predict(5.5, {**MIXED, "photo": np.zeros((N, 8, 8, 3))})

    def test_noise_is_chosen_for_wide_blocks_and_kept(self) -> None:
        wide = RNG.normal(size=(60, 40))
        noises = []
        for signal in (np.zeros(60), 20.0 * wide @ RNG.normal(size=40)):
            x = W + U + signal
            model = BGMIV(iterations=0, epochs=0, members=2, random_state=0)
            fitted = model.fit(x + U, x, instruments=W, covariates={"wide": wide}).fitted_
            noises.append(dict(fitted.config.model.covariates.features.block_noise)["wide"])
            assert fitted.model.covariates.encoder.features.parts[0].input_noise == noises[-1]
        assert noises[0] > noises[1]


def test_latents_that_are_the_covariates_are_not_sampled(base: BGMIV) -> None:
    with pytest.raises(ConfigError, match=r"nothing to sample.*preset='paper'"):
        base.posterior(0.0, V[:3])
    with pytest.raises(ConfigError, match="nothing to sample"):
        fit(latents="posterior")


def test_draws_as_arviz_data() -> None:
    pytest.importorskip("arviz")
    # Of networks that are not trained at all: draws are the same.
    base = fit(latent_layout=(1, 1, 0, 0), iterations=0, epochs=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = base.posterior(X[:3], V[:3], draws=40, chains=2, warmup=20)
    names = ["shared[0]", "outcome_only[0]"]
    assert found.posterior["latents"].shape == (2, 40, 3, len(names))
    assert found.posterior["structural"].shape == found.posterior["structural_model"].shape == (2, 40, 3)
    assert found.posterior["latent"].values.tolist() == names
    interval = base.predict_interval(X[:3], V[:3])
    model_draws = found.posterior["structural_model"].values.reshape(80, 3)
    assert (np.abs(model_draws.mean(axis=0) - interval.estimate) < 5.0 * interval.std_error / np.sqrt(80)).all()
    with pytest.raises(ConfigError, match="member must lie between 0 and 2"):
        base.posterior(0.0, V[:3], member=3)


@pytest.mark.slow
def test_honest_instruments_pass_and_shuffled_ones_do_not(small: BGMIVConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(small, ensemble=Ensemble(members=3, held_out=1 / 3), last_stage=SieveConfig())
    monkeypatch.setitem(PRESETS, "default", lambda: config)
    data = DemandDesign().sample(300, 0.5, 0)

    def fitted(instruments: np.ndarray) -> BGMIV:
        model = BGMIV(random_state=0)
        return model.fit(data.outcome, data.treatment, instruments=instruments, covariates=data.covariates)

    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        honest = fitted(data.instruments).verdict_
    assert honest.severity == "good"
    assert (honest.evidence.n_members, honest.evidence.n_held_out, honest.evidence.n_failed) == (3, 300, 0)
    assert honest.evidence.instrument_f is not None
    assert honest.evidence.instrument_f > 50.0
    with pytest.warns(FitWarning, match="The instruments are weak"):
        fitted(np.random.default_rng(0).permutation(data.instruments))
