"""All randomness of a training step from one call of the generator.

On a CPU every call of the counter-based generator is a compiled loop of its own; a warm-start step with a dozen calls
spends as long on them as on its matrix products. A step therefore draws one block of bits and reads from it.
"""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

__all__ = ["Draws"]


class Draws:
    """A reader over one block of random words; each read takes the next ones.

    Example:
        >>> draws = Draws(jax.random.key(0), 10)
        >>> draws.index((4,), jnp.asarray(3)).max() < 3
        Array(True, dtype=bool)
        >>> draws.normal((2, 3)).shape
        (2, 3)
    """

    def __init__(self, key: Array, n_words: int) -> None:
        """Draw `n_words` words of 32 bits."""
        self._words = jax.random.bits(key, (n_words,), jnp.uint32)
        self._used = 0

    def _take(self, shape: tuple[int, ...]) -> Array:
        start, self._used = self._used, self._used + prod(shape)
        if self._used > self._words.size:
            raise ValueError(f"a step asked for {self._used} random words but drew {self._words.size}.")
        return self._words[start : self._used].reshape(shape)

    def index(self, shape: tuple[int, ...], n: Array) -> Array:
        """Whole numbers below `n`; the remainder's bias is below `n / 2**32`."""
        return (self._take(shape) % n.astype(jnp.uint32)).astype(jnp.int32)

    def words(self, shape: tuple[int, ...]) -> Array:
        """The random words themselves, whole numbers from 0 to `2**32 - 1`."""
        return self._take(shape)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Numbers strictly between 0 and 1."""
        return (self._take(shape) >> 9).astype(jnp.float32) * 2.0**-23 + 2.0**-24

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Standard normal numbers."""
        return ndtri(self.uniform(shape))
