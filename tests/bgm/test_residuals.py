"""Residuals of the treatment: nodes against closed forms, and when they are used."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bgmiv
from bgmiv import BGMIV
from bgmiv.bgm import fit as fit_module
from bgmiv.bgm import last_stage
from bgmiv.bgm.config import PRESETS, BGMIVConfig
from bgmiv.bgm.members import LeftOutResiduals, density_gain, nodes_unless_normal
from bgmiv.integrate import GaussHermite, ResidualNodes, residual_nodes
from bgmiv.likelihood import Gaussian

RNG = np.random.default_rng(0)
N = 2000


def two_modes(n: int) -> np.ndarray:
    """A fifth of the rows around 1.94, the others around -0.485; mean zero, variance one."""
    centre = np.where(RNG.uniform(size=n) < 0.2, 2.0, -0.5)
    return 0.97 * centre + np.sqrt(1.0 - 0.97**2) * RNG.normal(size=n)


def residuals(values: np.ndarray) -> LeftOutResiduals:
    return LeftOutResiduals(values, np.arange(len(values)) % 5, np.ones(len(values)))


class TestNodes:
    def test_moments_are_those_of_a_skewed_density_with_two_modes(self) -> None:
        points = np.asarray(residual_nodes(two_modes(200_000), 16, np.ones(200_000)).points)
        # With B the centre, of moments 1, 0, 1, 1.5 and 3.25, and s the spread within a mode:
        # E r^3 = 0.97^3 E B^3; E r^4 = 0.97^4 E B^4 + 6 * 0.97^2 s^2 + 3 s^4.
        s2 = 1.0 - 0.97**2
        np.testing.assert_allclose(points.mean(), 0.0, atol=1e-12)
        np.testing.assert_allclose(np.mean(points**2), 1.0, rtol=1e-12)
        np.testing.assert_allclose(np.mean(points**3), 0.97**3 * 1.5, rtol=0.05)
        np.testing.assert_allclose(np.mean(points**4), 0.97**4 * 3.25 + 6 * 0.97**2 * s2 + 3 * s2**2, rtol=0.08)

    def test_a_polynomial_over_two_points_is_exact(self) -> None:
        rule = residual_nodes(np.array([-1.0, -1.0, 1.0, 1.0]), 4, np.ones(4))
        raw = jnp.asarray([0.7, 0.2])
        x, log_weights = rule.nodes(Gaussian(1), raw, jnp.zeros(()), jax.random.key(0))
        sd = float(np.sqrt(np.log1p(np.exp(0.2)) + 1e-6))
        found = float(jnp.sum(jnp.exp(log_weights) * x**4))
        np.testing.assert_allclose(found, ((0.7 - sd) ** 4 + (0.7 + sd) ** 4) / 2, rtol=1e-5)

    def test_a_weight_counts_as_so_many_rows(self) -> None:
        values = RNG.exponential(size=300)
        counts = RNG.integers(1, 4, size=300)
        repeated = np.repeat(values, counts)
        one = residual_nodes(values, 3, counts.astype(float))
        two = residual_nodes(repeated, 3, np.ones(len(repeated)))
        np.testing.assert_allclose(one.points, two.points, atol=0.02)


class TestChoice:
    @pytest.mark.parametrize("seed", range(20))
    def test_normal_residuals_keep_the_usual_nodes(self, seed: int) -> None:
        values = np.random.default_rng(seed).normal(size=300)
        assert nodes_unless_normal(residuals(values), 16) is None

    def test_nor_are_heavier_tails_a_reason(self) -> None:
        assert nodes_unless_normal(residuals(RNG.laplace(size=N)), 16) is None

    @pytest.mark.parametrize("values", [RNG.exponential(size=N) - 1.0, two_modes(N)], ids=["skewed", "two modes"])
    def test_residuals_that_are_not_normal_become_nodes(self, values: np.ndarray) -> None:
        found = nodes_unless_normal(residuals(values), 16)
        assert found is not None
        assert len(found.points) == 16

    def test_the_gain_is_near_the_distance_of_the_densities(self) -> None:
        # The entropy of a normal variable less that of an exponential one, both of variance one.
        assert 0.2 < density_gain(residuals(RNG.exponential(size=5000))) < 0.5 * np.log(2.0 * np.pi * np.e) - 1.0

    def test_one_far_row_does_not_decide(self) -> None:
        values = RNG.exponential(size=N)
        values[0] = 60.0
        assert np.isfinite(density_gain(residuals(values)))


@pytest.fixture(scope="module")
def small_fit(small_preset: BGMIVConfig) -> BGMIVConfig:
    return replace(small_preset, initial=replace(small_preset.initial, iterations=150, chunk=50))


@pytest.mark.filterwarnings("ignore::bgmiv.errors.FitWarning")
class TestFit:
    """The default's fit where networks are kept."""

    @staticmethod
    def fitted(config: BGMIVConfig, shock: np.ndarray) -> BGMIV:
        rng = np.random.default_rng(1)
        n = len(shock)
        w, v = rng.normal(size=(2, n))
        x = w + 0.3 * v + shock
        y = np.sin(2.0 * v) * x + 0.1 * shock
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(PRESETS, "default", lambda: config)
            # Small networks are no better than the sieve, and which nodes have the lower loss is chance.
            patch.setattr(last_stage, "_better", lambda *_: True)
            losses = count()
            patch.setattr(fit_module, "_mean_loss", lambda _: next(losses))
            return BGMIV(networks=True, random_state=0).fit(y, x, instruments=w, covariates=v)

    def test_nodes_follow_the_residuals_and_are_saved(self, small_fit: BGMIVConfig, tmp_path: Path) -> None:
        model = self.fitted(small_fit, two_modes(600))
        assert model.fitted_.uses_networks
        assert isinstance(model.fitted_.config.initial.integration, ResidualNodes)
        model.save(tmp_path / "model")
        again = bgmiv.load(tmp_path / "model")
        assert again.fitted_.config == model.fitted_.config
        np.testing.assert_array_equal(again.predict(0.5, np.zeros(1)), model.predict(0.5, np.zeros(1)))

    def test_nothing_changes_where_residuals_are_normal(self, small_fit: BGMIVConfig) -> None:
        shock = np.random.default_rng(2).normal(size=600)
        never = replace(small_fit, initial=replace(small_fit.initial, residual_nodes=0))
        with_choice, without = self.fitted(small_fit, shock), self.fitted(never, shock)
        assert with_choice.fitted_.config.initial.integration == GaussHermite(3)
        at = np.linspace(-2.0, 2.0, 5)
        np.testing.assert_array_equal(with_choice.predict(at, at), without.predict(at, at))
