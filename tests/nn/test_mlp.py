from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.nn import MLP, Dense, leaky_relu


def test_dense_is_an_affine_map() -> None:
    layer = Dense(3, 2, key=jax.random.key(0))
    x = jnp.asarray([1.0, -2.0, 0.5])
    np.testing.assert_allclose(layer(x), np.asarray(x) @ np.asarray(layer.kernel), rtol=1e-6)
    assert layer.kernel.shape == (3, 2)
    np.testing.assert_array_equal(layer.bias, np.zeros(2))


def test_dense_starts_glorot_uniform() -> None:
    kernel = np.asarray(Dense(100, 50, key=jax.random.key(1)).kernel)
    limit = np.sqrt(6.0 / 150.0)
    assert np.abs(kernel).max() <= limit
    # The variance of Uniform(-l, l) is l^2 / 3; 5000 draws know it to about one percent.
    assert kernel.var() == pytest.approx(limit**2 / 3.0, rel=0.05)


def test_leaky_relu_has_the_papers_slope() -> None:
    np.testing.assert_allclose(leaky_relu(jnp.asarray([-10.0, 0.0, 10.0])), [-2.0, 0.0, 10.0], rtol=1e-6)


def test_forward_pass_by_hand() -> None:
    net = MLP(2, (3,), 1, key=jax.random.key(0), activation=jnp.tanh)
    x = np.asarray([0.3, -0.7], dtype=np.float32)
    first, last = net.layers[0], net.outputs[0]
    by_hand = np.tanh(x @ np.asarray(first.kernel) + np.asarray(first.bias)) @ np.asarray(last.kernel)
    np.testing.assert_allclose(net(jnp.asarray(x)), by_hand + np.asarray(last.bias), rtol=1e-5)


def test_no_activation_after_the_last_layer() -> None:
    net = MLP(2, (4,), 1, key=jax.random.key(0), activation=jax.nn.relu)
    outputs = jax.vmap(net)(jax.random.normal(jax.random.key(1), (200, 2)))
    assert outputs.min() < 0.0 < outputs.max()


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4, 3)])
def test_widths(hidden: tuple[int, ...]) -> None:
    net = MLP(3, hidden, 2, key=jax.random.key(0))
    assert net(jnp.ones(3)).shape == (2,)
    assert [layer.kernel.shape[1] for layer in net.layers] == list(hidden)


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
@pytest.mark.parametrize("width", [1, 2])
def test_a_pass_in_two_halves_is_the_whole_pass(hidden: tuple[int, ...], width: int) -> None:
    net = MLP(3 + width, hidden, 2, key=jax.random.key(2))
    left, right = jnp.asarray([0.2, -1.0, 3.0]), jnp.linspace(-1.0, 2.0, width)
    np.testing.assert_allclose(
        net.from_context(net.first_context(left), right), net(jnp.concatenate([left, right])), atol=1e-6
    )


def test_no_leading_inputs_leave_the_bias() -> None:
    net = MLP(1, (5,), 2, key=jax.random.key(2))
    np.testing.assert_allclose(
        net.from_context(net.first_context(jnp.zeros(0)), jnp.ones(1)), net(jnp.ones(1)), atol=1e-6
    )


def test_several_heads_are_concatenated() -> None:
    net = MLP(3, (4,), (2, 5), key=jax.random.key(0))
    assert [head.kernel.shape for head in net.outputs] == [(4, 2), (4, 5)]
    x = jnp.ones(3)
    h = net.activation(net.layers[0](x))
    np.testing.assert_allclose(net(x), np.concatenate([head(h) for head in net.outputs]), rtol=1e-6)


def test_key_decides_the_weights() -> None:
    one, same, other = (MLP(2, (3,), 1, key=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.layers[0].kernel, same.layers[0].kernel)
    assert not np.array_equal(one.layers[0].kernel, other.layers[0].kernel)
    assert not np.array_equal(one.layers[0].kernel[0, :1], one.outputs[0].kernel[0])


def test_zero_inputs_give_a_constant_network() -> None:
    net = MLP(0, (4,), 2, key=jax.random.key(0))
    np.testing.assert_array_equal(net(jnp.zeros(0)), np.zeros(2))
