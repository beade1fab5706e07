"""The paper's Adam: decays 0.9 and 0.99."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optax

__all__ = ["DECAY_1", "DECAY_2", "EPSILON", "adam"]

DECAY_1, DECAY_2, EPSILON = 0.9, 0.99, 1e-7


def adam(
    learning_rate: float | optax.Schedule,
    *,
    weight_decay: float = 0.0,
    decayed: Callable[[Any], Any] | None = None,
) -> optax.GradientTransformation:
    """Adam with the decays of the paper's appendix B and the epsilon of the authors' framework.

    Args:
        learning_rate: the step size or its schedule.
        weight_decay: above zero, each step also shrinks parameters by this share of the step size (AdamW).
        decayed: from the parameters, a tree that says which of them shrink; None: all.

    Example:
        >>> import jax.numpy as jnp
        >>> updates, _ = adam(0.1).update(jnp.ones(1), adam(0.1).init(jnp.zeros(1)))
        >>> round(float(updates[0]), 4)
        -0.1
    """
    if weight_decay == 0.0:
        return optax.adam(learning_rate, b1=DECAY_1, b2=DECAY_2, eps=EPSILON)
    return optax.adamw(learning_rate, b1=DECAY_1, b2=DECAY_2, eps=EPSILON, weight_decay=weight_decay, mask=decayed)
