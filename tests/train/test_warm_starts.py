"""Both warm starts: the adversarial one of the paper and the direct one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from bgmiv.errors import ConfigError
from bgmiv.integrate import GaussHermite
from bgmiv.train import DirectStart, WarmStart, run_phase
from bgmiv.train.direct import direct_loss, sliced_distance
from bgmiv.train.egm import critic_loss

EGM = WarmStart(iterations=100, batch_size=8, learning_rate=5e-3, critic_steps=2, critic_hidden=(8,), chunk=7)
DIRECT = DirectStart(iterations=100, batch_size=8, learning_rate=1e-2, n_directions=4, chunk=7)
PROGRAMS = {"egm": EGM, "direct": DIRECT}
# The adversarial term of the first moves with the critic; the rest must fall.
FIT_PARTS = {"egm": ("covariates", "treatment", "outcome"), "direct": ("loss",)}


@pytest.fixture(scope="module", params=list(PROGRAMS))
def run(request: pytest.FixtureRequest, tiny: Any) -> Any:
    """Name, program, state before, state after and history of a whole warm start."""
    program = PROGRAMS[request.param]
    before = jax.jit(program.init)(tiny.model, jax.random.key(1))
    after, history = run_phase(program, before, tiny.data, jax.random.key(2))
    return request.param, program, before, after, history


def all_changed(one: Any, two: Any) -> bool:
    return not any(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


def same(one: Any, two: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


def test_it_trains(run: Any) -> None:
    name, _, _, _, history = run
    losses = [sum(row.metrics[part] for part in FIT_PARTS[name]) for row in history]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])


def test_every_part_moves(run: Any) -> None:
    name, _, before, after, _ = run
    assert all_changed(before.model, after.model)
    if name == "egm":
        # The last bias of a critic cancels between the two terms of its loss and so never moves.
        assert all_changed(before.critic.layers, after.critic.layers)
        assert all_changed(before.critic.outputs[0].kernel, after.critic.outputs[0].kernel)


def test_history_names_its_parts(run: Any) -> None:
    _, program, _, _, history = run
    assert [row.step for row in history] == [*range(7, 100, 7), 100]
    assert {row.phase for row in history} == {"warm start"}
    for row in history:
        assert set(row.metrics) == set(program.metric_names)
        assert np.isfinite(list(row.metrics.values())).all()


def test_chunks_do_not_change_the_result(run: Any, tiny: Any) -> None:
    _, program, before, after, _ = run
    again, history = run_phase(replace(program, chunk=50), before, tiny.data, jax.random.key(2))
    assert len(history) == 2
    # Bitwise: step t draws from fold_in(key, t), and the chunk's length is no part of the compiled program.
    assert same(after, again)


def test_padding_never_matters(run: Any, tiny: Any) -> None:
    _, program, before, after, _ = run
    rows = jax.tree.map(lambda leaf: leaf.at[20:].set(1e6), tiny.data.rows)
    again, _ = run_phase(program, before, tiny.data._replace(rows=rows), jax.random.key(2))
    assert same(after, again)


def test_critic_loss_of_a_linear_critic() -> None:
    # D(z) = s . z has slope s everywhere, so the penalty is (|s| - 1)^2 whatever the mixing.
    slope = np.asarray([[0.3], [-0.4], [1.2]], np.float32)
    from bgmiv.nn import MLP

    critic = eqx.tree_at(lambda net: net.outputs[0].kernel, MLP(3, (), 1, key=jax.random.key(0)), jnp.asarray(slope))
    rng = np.random.default_rng(0)
    fake, real = rng.normal(size=(2, 6, 3)).astype(np.float32)
    got = jax.jit(critic_loss)(critic, fake, real, rng.uniform(size=6).astype(np.float32), 10.0)
    expected = ((fake - real) @ slope).mean() + 10.0 * (np.linalg.norm(slope) - 1.0) ** 2
    assert float(got) == pytest.approx(float(expected), rel=1e-4)


def test_sliced_distance_of_shifted_quantiles() -> None:
    n = 200
    quantiles = norm.ppf((np.arange(n) + 0.5) / n).astype(np.float32)
    z = np.random.default_rng(0).permutation(quantiles)[:, None] + np.float32(0.7)
    got = jax.jit(sliced_distance)(z, np.asarray([[2.0], [-5.0]], np.float32))
    assert float(got) == pytest.approx(0.7**2, rel=1e-3)


def test_outcome_does_not_teach_the_treatments_spread(tiny: Any) -> None:
    rows = jax.tree.map(lambda leaf: leaf[:8], tiny.data.rows)
    louder = rows._replace(y=5.0 * rows.y)
    directions = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)

    @jax.jit
    def slope(rows: Any) -> Any:
        def loss(model: Any) -> jax.Array:
            noise, still = jnp.zeros((8, 0)), jnp.zeros(())
            return direct_loss(model, GaussHermite(3), rows, directions, noise, still, jax.random.key(0), DIRECT)[0]

        return jax.grad(loss)(tiny.model).treatment.outputs[0].kernel

    one, two = np.asarray(slope(rows)), np.asarray(slope(louder))
    # The second raw output is the spread.
    np.testing.assert_allclose(one[:, 1], two[:, 1], rtol=1e-4, atol=1e-6)
    assert not np.allclose(one[:, 0], two[:, 0], rtol=1e-2)


@pytest.mark.parametrize("program", [WarmStart, DirectStart])
@pytest.mark.parametrize(
    ("settings", "word"),
    [({"iterations": -1}, "iterations"), ({"batch_size": 1}, "batch_size"), ({"chunk": 0}, "chunk")],
)
def test_settings_that_cannot_train_are_refused(program: Any, settings: dict[str, int], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        program(**settings)
    with pytest.raises(ConfigError, match="learning_rate"):
        program(learning_rate=0.0)


def test_counts_of_their_own_are_refused() -> None:
    with pytest.raises(ConfigError, match="critic_steps"):
        WarmStart(critic_steps=0)
    with pytest.raises(ConfigError, match="n_directions"):
        DirectStart(n_directions=0)
