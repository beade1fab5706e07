"""The IV integral against closed forms.

In a linear-Gaussian model, X | w, z ~ N(m, s_x^2) and Y | x, z ~ N(a + b x, s_y^2), the integral over x is known:
log p(y | w, z) = log N(y; a + b m, s_y^2 + b^2 s_x^2).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from scipy.special import expit, logsumexp
from scipy.stats import norm

from bgmiv.bgm.config import CovariateConfig, LatentLayout
from bgmiv.bgm.covariates import build_covariates
from bgmiv.bgm.model import BGMIVModel, log_p_iv
from bgmiv.integrate import FiniteMixture, GaussHermite, IntegrationRule, MonteCarlo, QuasiMonteCarlo
from bgmiv.likelihood import Bernoulli, Categorical, Gaussian, Head, Levels
from bgmiv.nn.layers import MLP
from bgmiv.training import Row

LAYOUT = LatentLayout(1, 1, 1, 1)
Z = np.asarray([0.4, -0.9, 1.1, 5.0])
W = np.asarray([0.7, -0.2])
# Treatment: 0.3 z0 - 0.5 z2 + 0.8 w0 + 0.4 w1 + 0.1; outcome: -0.6 z0 + 0.2 z1 + b x - 0.3.
TREATMENT = np.asarray([0.3, -0.5, 0.8, 0.4]), 0.1
OUTCOME = np.asarray([-0.6, 0.2]), -0.3
MEAN_X = float(TREATMENT[0] @ [Z[0], Z[2], *W] + TREATMENT[1])
LEVEL = float(OUTCOME[0] @ Z[:2] + OUTCOME[1])

# (b, s_x, s_y): flat, balanced, negative and peaked integrands.
LINES = np.asarray([(0.5, 0.7, 1.0), (1.0, 1.0, 1.0), (2.0, 0.5, 1.0), (-1.5, 1.0, 0.8), (3.0, 1.0, 1.0)])


@pytest.fixture
def double_precision() -> Iterator[None]:
    if hasattr(jax, "enable_x64"):
        enable = jax.enable_x64
    else:
        from jax.experimental import enable_x64 as enable  # where releases before 0.8 keep it
    with enable(True):
        yield


def _affine(weights: Array, bias: float, sd: Array) -> MLP:
    """A network whose raw outputs are `x @ weights + bias` and the constant that makes the head's variance `sd**2`."""
    net = MLP(len(weights), (1,), 2, key=jax.random.key(0), activation=lambda x: x)
    outputs = jnp.stack([jnp.zeros(()), jnp.log(jnp.expm1(sd**2 - 1e-6))])
    return eqx.tree_at(
        lambda n: (n.layers[0].kernel, n.layers[0].bias, n.outputs[0].kernel, n.outputs[0].bias),
        net,
        (weights.reshape(-1, 1), jnp.full(1, bias), jnp.eye(1, 2), outputs),
    )


def _model(treatment: MLP, outcome: MLP, treatment_head: Head, outcome_head: Head) -> BGMIVModel:
    covariates = build_covariates((), LAYOUT.dim, CovariateConfig(dense_hidden=(2,)), key=jax.random.key(0))
    return BGMIVModel(covariates, treatment, outcome, LAYOUT, treatment_head, outcome_head)


def linear_gaussian(b: Array, s_x: Array, s_y: Array) -> BGMIVModel:
    treatment = _affine(jnp.asarray(TREATMENT[0]), TREATMENT[1], s_x)
    outcome = _affine(jnp.append(jnp.asarray(OUTCOME[0]), b), OUTCOME[1], s_y)
    return _model(treatment, outcome, Gaussian(1), Gaussian(1))


def _row(y: Array) -> Row:
    return Row(jnp.zeros(()), y, jnp.zeros(1), jnp.asarray(W))


@partial(jax.jit, static_argnums=0)
def _log_p(rule: IntegrationRule, lines: Array, y: Array, keys: Array) -> Array:
    """`log_p_iv` of every (line, outcome) pair under every key, `(n, n_keys)`."""

    def one(line: Array, y: Array, key: Array) -> Array:
        return log_p_iv(linear_gaussian(*line), rule, _row(y), jnp.asarray(Z), key)

    return jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None))(lines, y, keys)


def exact(lines: np.ndarray, y: np.ndarray) -> np.ndarray:
    b, s_x, s_y = lines.T
    return norm.logpdf(y, LEVEL + b * MEAN_X, np.sqrt(s_y**2 + b**2 * s_x**2))


def pairs(deviations: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Every line with outcomes that many predictive deviations off their mean."""
    lines = np.repeat(LINES, len(deviations), axis=0)
    b, s_x, s_y = lines.T
    off = np.tile(deviations, len(LINES))
    return lines, LEVEL + b * MEAN_X + off * np.sqrt(s_y**2 + b**2 * s_x**2)


def errors(rule: IntegrationRule, deviations: list[float], n_keys: int) -> np.ndarray:
    lines, y = pairs(deviations)
    got = _log_p(rule, lines, y, jax.random.split(jax.random.key(7), n_keys))
    return np.abs(np.asarray(got, np.float64) - exact(lines, y)[:, None])


@pytest.mark.parametrize(
    ("rule", "deviations"),
    [
        (GaussHermite(64), [-3.0, -1.0, 0.0, 2.0, 3.0]),
        # Strata of equal probability are sparse in the tails: an outcome two deviations off needs eight times as many.
        (QuasiMonteCarlo(2**14), [-1.0, 0.0, 0.5, 1.0]),
        (QuasiMonteCarlo(2**17), [-2.0, 2.0]),
    ],
)
def test_many_nodes_give_the_closed_form(rule: IntegrationRule, deviations: list[float]) -> None:
    assert errors(rule, deviations, 3).max() < 1e-4


def test_quasi_monte_carlo_beats_plain_draws_with_the_same_count() -> None:
    deviations = [-1.0, 0.0, 1.0]
    plain = errors(MonteCarlo(64), deviations, 50)
    stratified = errors(QuasiMonteCarlo(64), deviations, 50)
    assert (np.sqrt((stratified**2).mean(axis=1)) < 0.25 * np.sqrt((plain**2).mean(axis=1))).all()


@pytest.mark.parametrize("rule", [MonteCarlo(32), QuasiMonteCarlo(32)])
def test_random_rules_are_unbiased_for_the_density(rule: IntegrationRule) -> None:
    lines, y = pairs([0.0, 1.5])
    log_p = np.asarray(_log_p(rule, lines, y, jax.random.split(jax.random.key(5), 2000)))
    ratio = np.exp(log_p - exact(lines, y)[:, None])
    # 5e-6 is the float32 rounding of an average that has hardly any spread.
    standard_error = ratio.std(axis=1) / np.sqrt(2000) + 5e-6
    assert (np.abs(ratio.mean(axis=1) - 1.0) < 4.0 * standard_error).all()


@pytest.mark.parametrize(
    ("treatment_head", "outcome_head"),
    [(Bernoulli(1), Gaussian(1)), (Levels(3), Gaussian(1)), (Levels(3), Bernoulli(1)), (Levels(3), Categorical(4))],
)
def test_finite_mixture_is_the_enumeration(treatment_head: Head, outcome_head: Head, double_precision: None) -> None:
    key_treatment, key_outcome = jax.random.split(jax.random.key(1))
    z = jnp.asarray(Z)
    codes = jnp.eye(3) if treatment_head == Levels(3) else jnp.asarray([[0.0], [1.0]])
    model = _model(
        MLP(LAYOUT.treatment_dim + len(W), (5,), treatment_head.raw_dim, key=key_treatment),
        MLP(LAYOUT.outcome_dim + codes.shape[1], (5,), outcome_head.raw_dim, key=key_outcome),
        treatment_head,
        outcome_head,
    )
    logits = np.asarray(model.treatment(jnp.concatenate([z[:1], z[2:3], jnp.asarray(W)])))
    if treatment_head == Bernoulli(1):
        logits = np.append(0.0, logits)
    weights = np.exp(logits - logsumexp(logits))
    outcomes = np.asarray([0.0, 1.0] if outcome_head == Bernoulli(1) else [0.0, 1.0, 3.0])
    densities = np.zeros((len(outcomes), len(codes)))
    for level, code in enumerate(codes):
        raw = np.asarray(model.outcome(jnp.concatenate([z[:2], code])))
        if isinstance(outcome_head, Gaussian):
            densities[:, level] = norm.pdf(outcomes, raw[0], np.sqrt(np.log1p(np.exp(raw[1])) + 1e-6))
        elif isinstance(outcome_head, Bernoulli):
            densities[:, level] = expit([-raw[0], raw[0]])
        else:
            densities[:, level] = np.exp(raw - logsumexp(raw))[outcomes.astype(int)]
    log_p = jax.jit(jax.vmap(lambda y: log_p_iv(model, FiniteMixture(), _row(y), z, jax.random.key(0))))
    np.testing.assert_allclose(log_p(outcomes), np.log(densities @ weights), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", [MonteCarlo(16), QuasiMonteCarlo(16), GaussHermite(8)])
def test_likelihood_of_an_absurd_outcome_has_a_finite_gradient(rule: IntegrationRule) -> None:
    # (500 / 1)^2 / 2 is a log-density near -1e5 at every node.
    line = jnp.asarray([1.0, 1.0, 1.0])

    def value(line: Array, z: Array) -> Array:
        return log_p_iv(linear_gaussian(*line), rule, _row(jnp.asarray(500.0)), z, jax.random.key(0))

    log_p, slopes = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(line, jnp.asarray(Z))
    assert -2e5 < float(log_p) < -1e4
    for slope in slopes:
        assert np.isfinite(slope).all()
        assert np.any(np.asarray(slope) != 0.0)
