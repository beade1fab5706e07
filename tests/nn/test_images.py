from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv.nn.layers import Conv, TransposedConv, max_pool

SHAPES = [(5, 4, 3), (1, 1, 1), (2, 7, 2)]


def conv_by_loops(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    height, width, _ = image.shape
    out = np.zeros((height, width, kernel.shape[-1]))
    for i, j, a, b in np.ndindex(height, width, 3, 3):
        y, x = i + a - 1, j + b - 1
        if 0 <= y < height and 0 <= x < width:
            out[i, j] += image[y, x] @ kernel[a, b]
    return out


def transposed_by_loops(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    height, width, _ = image.shape
    out = np.zeros((2 * height + 1, 2 * width + 1, kernel.shape[-1]))
    for i, j, a, b in np.ndindex(height, width, 3, 3):
        out[2 * i + a, 2 * j + b] += image[i, j] @ kernel[a, b]
    return out[:-1, :-1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("layer", "loops"), [(Conv, conv_by_loops), (TransposedConv, transposed_by_loops)])
def test_the_same_as_loops(layer: type[Conv | TransposedConv], loops: object, shape: tuple[int, int, int]) -> None:
    image = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    made = jax.jit(lambda: layer.drawn(shape[2], 2, key=jax.random.key(1)))()
    got = jax.jit(lambda net, x: net(x))(made, image)
    np.testing.assert_allclose(got, loops(image, np.asarray(made.kernel)), atol=1e-5)  # type: ignore[operator]


def test_the_transposed_one_is_the_transpose_of_a_strided_convolution() -> None:
    rng = np.random.default_rng(0)
    small, large = rng.normal(size=(3, 2, 2)).astype(np.float32), rng.normal(size=(6, 4, 5)).astype(np.float32)
    net = TransposedConv.drawn(2, 5, key=jax.random.key(0))
    strided = jax.lax.conv_general_dilated(
        large[None],
        jnp.moveaxis(net.kernel, 2, 3),
        (2, 2),
        ((0, 1), (0, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )[0]
    assert float(jnp.sum(net(small) * large)) == pytest.approx(float(jnp.sum(small * strided)), rel=1e-4)


def test_kernels_start_glorot_uniform_with_zero_bias() -> None:
    for layer in (Conv, TransposedConv):
        made = layer.drawn(40, 24, key=jax.random.key(0))
        kernel, limit = np.asarray(made.kernel), np.sqrt(6.0 / (9 * 64))
        assert kernel.shape == (3, 3, 40, 24)
        assert np.abs(kernel).max() <= limit
        assert kernel.var() == pytest.approx(limit**2 / 3.0, rel=0.05)
        np.testing.assert_array_equal(made.bias, np.zeros(24))


def test_the_bias_is_added() -> None:
    for layer in (Conv, TransposedConv):
        made = layer.drawn(1, 1, key=jax.random.key(0))
        made = jax.tree.unflatten(jax.tree.structure(made), [0.0 * made.kernel, made.bias + 2.5])
        np.testing.assert_array_equal(made(jnp.ones((2, 2, 1))), np.full(made(jnp.ones((2, 2, 1))).shape, 2.5))


@pytest.mark.parametrize("shape", [*SHAPES, (4, 6, 1), (9, 7, 2)])
def test_pooling_takes_the_largest_of_every_window(shape: tuple[int, int, int]) -> None:
    image = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    got = np.asarray(max_pool(jnp.asarray(image)))
    assert got.shape == (-(-shape[0] // 2), -(-shape[1] // 2), shape[2])
    for i, j in np.ndindex(got.shape[:2]):
        window = image[2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        np.testing.assert_array_equal(got[i, j], window.max(axis=(0, 1)))


def test_stacked_weights_give_what_single_ones_give() -> None:
    image = np.random.default_rng(0).normal(size=(5, 4, 2)).astype(np.float32)
    for layer in (Conv, TransposedConv):
        keys = jax.random.split(jax.random.key(0), 3)
        stacked = jax.vmap(lambda key, layer=layer: layer.drawn(2, 3, key=key))(keys)
        together = jax.vmap(lambda net: net(image))(stacked)
        for i in range(3):
            one = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
            np.testing.assert_allclose(together[i], one(image), atol=1e-5)
