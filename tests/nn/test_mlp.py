from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.nn.layers import MLP, Dense, draw_kernel, leaky_relu


def build(n_in: int, hidden: tuple[int, ...], n_out: int | tuple[int, ...], seed: int, activation=leaky_relu) -> MLP:
    return MLP(n_in, hidden, n_out, key=jax.random.key(seed), activation=activation)


@jax.jit
def apply(net: MLP, x: jax.Array) -> jax.Array:
    return net(x)


@jax.jit
def in_two_halves(net: MLP, left: jax.Array, right: jax.Array) -> jax.Array:
    return net.from_context(net.first_context(left), right)


def test_dense_starts_glorot_uniform_with_zero_bias() -> None:
    layer = jax.jit(lambda: Dense(100, 50, key=jax.random.key(1)))()
    kernel, limit = np.asarray(layer.kernel), np.sqrt(6.0 / 150.0)
    assert kernel.shape == (100, 50)
    assert np.abs(kernel).max() <= limit
    # The variance of Uniform(-l, l) is l^2 / 3; 5000 draws know it to about one percent.
    assert kernel.var() == pytest.approx(limit**2 / 3.0, rel=0.05)
    np.testing.assert_array_equal(layer.bias, np.zeros(50))


@pytest.mark.parametrize("shape", [(3, 5), (70, 70), (3, 3, 1, 2), (0, 4)])
def test_kernels_are_the_plain_draw_in_and_out_of_a_program(shape: tuple[int, ...]) -> None:
    key = jax.random.key(2)
    plain = 0.3 * jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
    np.testing.assert_array_equal(draw_kernel(key, shape, 0.3), plain)
    np.testing.assert_array_equal(jax.jit(lambda: draw_kernel(key, shape, 0.3))(), plain)


def test_leaky_relu_has_the_papers_slope() -> None:
    np.testing.assert_allclose(leaky_relu(jnp.asarray([-10.0, 0.0, 10.0])), [-2.0, 0.0, 10.0], rtol=1e-6)


def test_forward_pass_by_hand() -> None:
    net = build(2, (3,), (1, 2), 0, jnp.tanh)
    x = np.asarray([0.3, -0.7], np.float32)
    first = net.layers[0]
    hidden = np.tanh(x @ np.asarray(first.kernel) + np.asarray(first.bias))
    by_hand = [hidden @ np.asarray(head.kernel) + np.asarray(head.bias) for head in net.outputs]
    assert [len(part) for part in by_hand] == [1, 2]
    np.testing.assert_allclose(apply(net, x), np.concatenate(by_hand), rtol=1e-5)


def test_no_activation_after_the_last_layer() -> None:
    net = build(2, (4,), 1, 0, jax.nn.relu)
    outputs = jax.jit(lambda n, x: jax.vmap(n)(x))(
        net, np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    )
    assert outputs.min() < 0.0 < outputs.max()


@pytest.mark.parametrize(("hidden", "width"), [((), 1), ((), 2), ((5,), 1), ((5, 4, 3), 2)])
def test_a_pass_in_two_halves_is_the_whole_pass(hidden: tuple[int, ...], width: int) -> None:
    net = build(3 + width, hidden, 2, 2)
    assert [layer.kernel.shape[1] for layer in net.layers] == list(hidden)
    left = np.asarray([0.2, -1.0, 3.0], np.float32)
    right = np.linspace(-1.0, 2.0, width, dtype=np.float32)
    whole = apply(net, np.concatenate([left, right]))
    assert whole.shape == (2,)
    np.testing.assert_allclose(in_two_halves(net, left, right), whole, atol=1e-6)


def test_no_leading_inputs_leave_the_bias() -> None:
    net = build(1, (5,), 2, 2)
    halves = in_two_halves(net, np.zeros(0, np.float32), np.ones(1, np.float32))
    np.testing.assert_allclose(halves, apply(net, np.ones(1, np.float32)), atol=1e-6)


def test_key_decides_the_weights() -> None:
    one, same, other = (build(2, (3,), 1, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.layers[0].kernel, same.layers[0].kernel)
    assert not np.array_equal(one.layers[0].kernel, other.layers[0].kernel)


def test_layers_are_drawn_independently() -> None:
    net = build(4, (4, 4), (4, 4), 0)
    kernels = [np.asarray(layer.kernel) for layer in (*net.layers, *net.outputs)]
    assert len({kernel.tobytes() for kernel in kernels}) == 4


def test_zero_inputs_give_a_constant_network() -> None:
    np.testing.assert_array_equal(apply(build(0, (4,), 2, 0), np.zeros(0, np.float32)), np.zeros(2))
