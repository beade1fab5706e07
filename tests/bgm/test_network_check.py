"""Whether networks are trained: what left-out rows say, what is asked, and what a fit without them can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bgmiv
from bgmiv import BGMIV, NPIV, ConfigError, DataError
from bgmiv.bgm import fit as fit_module
from bgmiv.bgm.last_stage import LastStage
from bgmiv.bgm.network_check import boosted_trees, left_for_networks
from bgmiv.data import IVData
from bgmiv.sieve.fit import SieveConfig, fit_sieve

N = 600


def draw(surface: float, seed: int = 0, **roles: Any) -> IVData:
    """A line in the treatment, noise, and a surface of four covariates that the few terms of a sieve cannot follow."""
    rng = np.random.default_rng(seed)
    w, u, noise = rng.normal(size=(3, N))
    v = rng.normal(size=(N, 4))
    x = w + u
    g = x + surface * np.sign(v[:, 0] * v[:, 1]) * np.sign(v[:, 2])
    return IVData.from_arrays(g + u + noise, x, instruments=w, covariates=v, **roles)


def left(data: IVData, **settings: Any) -> float:
    return left_for_networks(LastStage(data, fit_sieve(SieveConfig(), data, **settings)), **settings)


def test_trees_learn_from_the_rows_that_have_weight() -> None:
    codes = np.random.default_rng(0).integers(0, 32, (2000, 3))
    step = np.where((codes[:, 0] > 9) & (codes[:, 2] <= 20), 2.0, -1.0)
    weights = np.where(np.arange(2000) < 1500, 1.0, 0.0)
    target = np.where(weights > 0.0, step, 1e6)
    np.testing.assert_allclose(boosted_trees(codes, target, weights), step, atol=0.05)
    # The unit of the weights does not matter.
    np.testing.assert_allclose(boosted_trees(codes, target, 8.0 * weights), boosted_trees(codes, target, weights))


def test_without_columns_or_rows_enough_for_a_leaf_nothing_is_predicted() -> None:
    assert not boosted_trees(np.zeros((50, 0), int), np.ones(50), np.ones(50)).any()
    # Fifteen rows a side: all stay together, around their mean.
    codes = np.arange(30)[:, None] % 2
    np.testing.assert_allclose(boosted_trees(codes, codes[:, 0] - 0.5, np.ones(30)), 0.0, atol=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_noise_is_nothing_and_a_surface_is_something(seed: int) -> None:
    assert left(draw(0.0, seed)) < 0.0
    assert left(draw(2.0, seed)) > 0.0


def test_the_same_without_instruments_with_weights_and_with_groups() -> None:
    groups = np.random.default_rng(1).integers(0, 60, N)
    weights = np.random.default_rng(2).uniform(0.5, 1.5, N)
    for surface in (0.0, 2.0):
        for data in (draw(surface, clusters=groups), draw(surface, sample_weight=weights)):
            assert (left(data) > 0.0) == (surface > 0.0)
        assert (left(draw(surface).without_instruments(), use_instrument=False) > 0.0) == (surface > 0.0)


def test_errors_that_are_next_to_nothing_are_nothing() -> None:
    """Smoothing leaves errors that trees can see, of a size that nobody would."""
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, N))
    x = w + v + u
    data = IVData.from_arrays(3.0 * x + 2.0 * np.sin(v) - 4.0 * u, x, instruments=w, covariates=v)
    assert left(data) == 0.0


def fit(data: IVData, **settings: Any) -> BGMIV:
    model = BGMIV(random_state=0, **settings)
    return model._fit(data)


@pytest.fixture(scope="module")
def model() -> BGMIV:
    """Fitted where nothing is left for networks."""
    return fit(draw(0.0))


class TestFitsWithoutNetworks:
    def test_it_is_the_sieve_and_says_why(self, model: BGMIV) -> None:
        data, sieve = draw(0.0), NPIV()
        sieve._fit(data)
        assert model.fitted_.members == ()
        assert not model.fitted_.uses_networks
        assert model.history_ == ()
        assert str(model.ate_interval(t0=0, t1=1)) == str(sieve.ate_interval(t0=0, t1=1))
        assert model.verdict_.evidence.networks == "nothing left"
        assert model.verdict_.evidence.left_for_networks < 0.0
        assert "Networks were not trained: nothing was left for them in held-out rows." in model.verdict_.sentence
        assert model.fitted_.latent_usage(data, None, 0) is None

    def test_it_is_saved_and_loaded(self, model: BGMIV, tmp_path: Path) -> None:
        model.save(tmp_path / "fit")
        again = bgmiv.load(tmp_path / "fit")
        at = np.linspace(-1.0, 1.0, 5), np.zeros((5, 4))
        np.testing.assert_array_equal(again.predict(*at), model.predict(*at))
        assert again.fitted_.evidence.networks == "nothing left"
        assert again.networks == "auto"

    def test_latents_cannot_be_drawn(self, model: BGMIV) -> None:
        with pytest.raises(ConfigError, match=r"networks were not trained.*networks=True"):
            model.posterior(0.0, np.zeros((1, 4)))

    def test_held_out_predictions_do_not_ask_again_whether_to_train(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # What the shared fit has been asked, it need not compute again.
        model = fit(draw(0.0))
        monkeypatch.setattr(fit_module, "left_for_networks", lambda *_, **__: pytest.fail("asked again"))
        assert model.verdict_.evidence.moment_p is not None

    def test_the_no_instrument_version_has_none_either(self, model: BGMIV) -> None:
        without = model._with_rows().without_instrument
        assert without is not None
        assert without.evidence is not None
        assert without.evidence.networks == "not wanted"

    @pytest.mark.parametrize("kind", ["binary", "categorical"])
    def test_treatments_with_levels(self, kind: str) -> None:
        rng = np.random.default_rng(0)
        w, u, noise = rng.normal(size=(3, N))
        x = (w + u > 0.0).astype(int) if kind == "binary" else np.digitize(w + u, [-0.7, 0.7])
        data = IVData.from_arrays(x + u + noise, x, instruments=np.column_stack([w, w**2]), treatment_kind=kind)
        assert fit(data).verdict_.evidence.networks == "nothing left"

    def test_an_outcome_with_two_levels(self) -> None:
        one = draw(0.0)
        roles = {"instruments": one.instruments, "covariates": one.covariates}
        data = IVData.from_arrays(one.outcome > 0.0, one.treatment, **roles)
        assert fit(data).verdict_.evidence.networks == "nothing left"


class TestTheSwitch:
    def test_never(self) -> None:
        model = fit(draw(2.0), networks=False)
        assert model.fitted_.members == ()
        assert model.verdict_.evidence.networks == "not wanted"
        assert "networks=False" in model.verdict_.sentence

    def test_never_is_for_a_fit_with_a_last_stage(self) -> None:
        for settings in ({"preset": "paper"}, {"held_out": 0.0}):
            with pytest.raises(ConfigError, match="networks=False leaves the last stage"):
                BGMIV(networks=False, **settings)._config()
        with pytest.raises(ConfigError, match="'auto', True or False"):
            BGMIV(networks="always")._config()  # type: ignore[arg-type]
        rng = np.random.default_rng(0)
        w = rng.normal(size=N)
        levels = IVData.from_arrays(
            rng.integers(0, 3, N), w + rng.normal(size=N), instruments=w, outcome_kind="categorical"
        )
        with pytest.raises(DataError, match="by networks only"):
            fit(levels, networks=False)

    @pytest.mark.parametrize(
        ("change", "wanted"),
        [({}, False), ({"networks": True}, True), ({"surface": 2.0}, True), ({"wide": True}, True)],
        ids=["noise", "asked", "a surface", "a wide block"],
    )
    def test_when_networks_are_trained(
        self, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], wanted: bool
    ) -> None:
        from bgmiv.bgm import members

        class Trained(Exception):
            pass

        def trained(*_: Any) -> None:
            raise Trained

        monkeypatch.setattr(members, "train_members", trained)
        data = draw(change.pop("surface", 0.0))
        if change.pop("wide", False):
            proxy = np.random.default_rng(0).normal(size=(N, 40))
            data = IVData.from_arrays(
                data.outcome, data.treatment, instruments=data.instruments, covariates={"proxy": proxy}
            )
        if not wanted:
            assert fit(data, **change).fitted_.members == ()
            return
        with pytest.raises(Trained):
            fit(data, **change)
