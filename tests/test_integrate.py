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
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import norm

from bgmiv.covariates import build_dense
from bgmiv.integrate import (
    FiniteMixture,
    GaussHermite,
    IntegrationRule,
    MonteCarlo,
    QuasiMonteCarlo,
    log_integral,
)
from bgmiv.likelihood import Bernoulli, Categorical, Gaussian, Head, Levels
from bgmiv.model import BGMIVModel, LatentLayout, Row
from bgmiv.model.objectives import log_p_iv, outcome_raws
from bgmiv.nn import MLP

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


def _identity(x: Array) -> Array:
    return x


def _affine(weights: Array | np.ndarray, bias: float | Array, spread: float | Array | None) -> MLP:
    """A network whose first raw output is `x @ weights + bias` and whose second, if any, is the constant `spread`."""
    n_out = 1 if spread is None else 2
    net = MLP(len(weights), (1,), n_out, key=jax.random.key(0), activation=_identity)
    outputs = jnp.asarray([0.0]) if spread is None else jnp.stack([jnp.zeros(()), jnp.asarray(spread)])
    return eqx.tree_at(
        lambda n: (n.layers[0].kernel, n.layers[0].bias, n.outputs[0].kernel, n.outputs[0].bias),
        net,
        (weights.reshape(-1, 1), jnp.reshape(bias, (1,)), jnp.eye(1, n_out), outputs),
    )


def _raw_variance(deviation: Array) -> Array:
    """The raw output whose softplus plus the head's floor is `deviation` squared."""
    return jnp.log(jnp.expm1(deviation**2 - 1e-6))


def _model(treatment: MLP, outcome: MLP, treatment_head: Head, outcome_head: Head) -> BGMIVModel:
    covariates = build_dense(1, LAYOUT.dim, key=jax.random.key(0), hidden=(2,))
    return BGMIVModel(covariates, treatment, outcome, LAYOUT, treatment_head, outcome_head)


def linear_gaussian(b: Array, s_x: Array, s_y: Array) -> BGMIVModel:
    return _model(
        _affine(jnp.asarray(TREATMENT[0]), TREATMENT[1], _raw_variance(s_x)),
        _affine(jnp.append(jnp.asarray(OUTCOME[0]), b), OUTCOME[1], _raw_variance(s_y)),
        Gaussian(1),
        Gaussian(1),
    )


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


def test_gauss_hermite_with_64_nodes() -> None:
    assert errors(GaussHermite(64), [-3.0, -1.0, 0.0, 2.0, 3.0], 1).max() < 1e-4


@pytest.mark.parametrize(
    ("n_nodes", "deviations"),
    # Strata of equal probability are sparse in the tails: an outcome two deviations off needs eight times as many.
    [(2**14, [-1.0, 0.0, 0.5, 1.0]), (2**17, [-2.0, 2.0])],
)
def test_quasi_monte_carlo(n_nodes: int, deviations: list[float]) -> None:
    assert errors(QuasiMonteCarlo(n_nodes), deviations, 5).max() < 1e-4


def test_monte_carlo_within_its_own_standard_error() -> None:
    rule, n_keys = MonteCarlo(1000), 10
    lines, y = pairs([-1.0, 0.0, 2.0])

    @jax.jit
    def standard_errors(lines: Array, y: Array, keys: Array) -> Array:
        def one(line: Array, y: Array, key: Array) -> Array:
            model = linear_gaussian(*line)
            z = jnp.asarray(Z)
            nodes, _ = rule.nodes(Gaussian(1), model.treatment_raw(jnp.asarray(W), z), jnp.zeros(()), key)
            raws = outcome_raws(model, nodes, z)
            density = jnp.exp(jax.vmap(lambda raw: Gaussian(1).log_prob(raw, y[None])[0])(raws))
            # The delta method: the error of a log is the relative error.
            return jnp.std(density) / jnp.mean(density) / jnp.sqrt(len(nodes))

        return jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None))(lines, y, keys)

    keys = jax.random.split(jax.random.key(3), n_keys)
    off = np.asarray(_log_p(rule, lines, y, keys)) - exact(lines, y)[:, None]
    in_errors = off / np.asarray(standard_errors(lines, y, keys))
    assert np.abs(in_errors).max() < 4.0
    # Were the error over-estimated, the first check would be empty.
    assert 0.7 < in_errors.std() < 1.4


def test_quasi_monte_carlo_beats_plain_draws_with_the_same_count() -> None:
    deviations = [-1.0, 0.0, 1.0]
    plain = errors(MonteCarlo(64), deviations, 50)
    stratified = errors(QuasiMonteCarlo(64), deviations, 50)
    assert (np.sqrt((stratified**2).mean(axis=1)) < 0.25 * np.sqrt((plain**2).mean(axis=1))).all()


@pytest.mark.parametrize("rule", [MonteCarlo(32), QuasiMonteCarlo(32)])
def test_random_rules_are_unbiased_for_the_density(rule: IntegrationRule) -> None:
    lines, y = pairs([0.0, 1.5])
    n_keys = 2000
    ratio = np.exp(np.asarray(_log_p(rule, lines, y, jax.random.split(jax.random.key(5), n_keys)))) / np.exp(
        exact(lines, y)[:, None]
    )
    # 5e-6 is the float32 rounding of an average that has hardly any spread.
    standard_error = ratio.std(axis=1) / np.sqrt(n_keys) + 5e-6
    assert (np.abs(ratio.mean(axis=1) - 1.0) < 4.0 * standard_error).all()


def test_one_hermite_node_is_the_plug_in() -> None:
    lines, y = pairs([0.0, 1.0])
    b, _, s_y = lines.T
    got = _log_p(GaussHermite(1), lines, y, jax.random.split(jax.random.key(0), 1))[:, 0]
    np.testing.assert_allclose(got, norm.logpdf(y, LEVEL + b * MEAN_X, s_y), rtol=1e-5)


def _enumerated(logit: float, log_densities: np.ndarray) -> float:
    return float(logsumexp(np.asarray([log_expit(-logit), log_expit(logit)]) + log_densities))


@partial(jax.jit, static_argnums=1)
def _log_p_of(model: BGMIVModel, rule: IntegrationRule, y: Array) -> Array:
    return jax.vmap(lambda y: log_p_iv(model, rule, _row(y), jnp.asarray(Z), jax.random.key(0)))(y)


def test_finite_mixture_is_the_enumeration(double_precision: None) -> None:
    b, s_y, outcomes = 1.7, 0.6, np.asarray([-30.0, 0.0, 2.0])
    model = _model(
        _affine(TREATMENT[0], TREATMENT[1], None),
        _affine(np.append(OUTCOME[0], b), OUTCOME[1], _raw_variance(jnp.asarray(s_y))),
        Bernoulli(1),
        Gaussian(1),
    )
    expected = [_enumerated(MEAN_X, norm.logpdf(y, [LEVEL, LEVEL + b], s_y)) for y in outcomes]
    np.testing.assert_allclose(_log_p_of(model, FiniteMixture(), outcomes), expected, rtol=0, atol=1e-6)


def test_finite_mixture_of_a_binary_outcome(double_precision: None) -> None:
    b = 1.7
    model = _model(
        _affine(TREATMENT[0], TREATMENT[1], None),
        _affine(np.append(OUTCOME[0], b), OUTCOME[1], None),
        Bernoulli(1),
        Bernoulli(1),
    )
    chance = expit([LEVEL, LEVEL + b])
    expected = [_enumerated(MEAN_X, np.log(p)) for p in (1.0 - chance, chance)]
    got = _log_p_of(model, FiniteMixture(), np.asarray([0.0, 1.0]))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("outcome_head", [Gaussian(1), Bernoulli(1), Categorical(4)], ids=["real", "binary", "levels"])
def test_finite_mixture_over_levels_is_the_enumeration(outcome_head: Head, double_precision: None) -> None:
    key_treatment, key_outcome = jax.random.split(jax.random.key(1))
    n_levels, z = 3, jnp.asarray(Z)
    model = _model(
        MLP(LAYOUT.treatment_dim + len(W), (5,), n_levels, key=key_treatment),
        MLP(LAYOUT.outcome_dim + n_levels, (5,), outcome_head.raw_dim, key=key_outcome),
        Levels(n_levels),
        outcome_head,
    )
    logits = np.asarray(model.treatment(jnp.concatenate([z[:1], z[2:3], jnp.asarray(W)])))
    weights = np.exp(logits - logsumexp(logits))
    outcomes = np.asarray([0.0, 1.0] if outcome_head == Bernoulli(1) else [0.0, 1.0, 3.0])
    expected = []
    for y in outcomes:
        total = 0.0
        for level in range(n_levels):
            raw = np.asarray(model.outcome(jnp.concatenate([z[:2], jnp.eye(n_levels)[level]])))
            if isinstance(outcome_head, Gaussian):
                density = norm.pdf(y, raw[0], np.sqrt(np.log1p(np.exp(raw[1])) + 1e-6))
            elif isinstance(outcome_head, Bernoulli):
                density = expit(raw[0] if y else -raw[0])
            else:
                density = np.exp(raw - logsumexp(raw))[int(y)]
            total += weights[level] * density
        expected.append(np.log(total))
    np.testing.assert_allclose(_log_p_of(model, FiniteMixture(), outcomes), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("level", [-1e5, -1e30])
def test_log_integral_survives_underflow(level: float) -> None:
    log_weights = np.log(np.full(8, 1 / 8)).astype(np.float32)
    log_densities = (level + np.linspace(0.0, 7.0, 8)).astype(np.float32)
    value, slope = jax.jit(jax.value_and_grad(log_integral, argnums=(0, 1)))(log_weights, log_densities)
    assert float(value) == pytest.approx(
        float(logsumexp(log_weights.astype(np.float64) + log_densities.astype(np.float64))), rel=1e-6
    )
    for part in slope:
        assert np.isfinite(part).all()
        assert float(np.sum(part)) == pytest.approx(1.0, abs=1e-5)


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
