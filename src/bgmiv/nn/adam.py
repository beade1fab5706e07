"""The paper's Adam: decays 0.9 and 0.99."""

from __future__ import annotations

import optax

__all__ = ["DECAY_1", "DECAY_2", "EPSILON", "adam"]

DECAY_1, DECAY_2, EPSILON = 0.9, 0.99, 1e-7


def adam(learning_rate: float | optax.Schedule) -> optax.GradientTransformation:
    """Adam with the decays of the paper's appendix B and the epsilon of the authors' framework.

    Example:
        >>> import jax.numpy as jnp
        >>> updates, _ = adam(0.1).update(jnp.ones(1), adam(0.1).init(jnp.zeros(1)))
        >>> round(float(updates[0]), 4)
        -0.1
    """
    return optax.adam(learning_rate, b1=DECAY_1, b2=DECAY_2, eps=EPSILON)
