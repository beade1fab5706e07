"""The two initial phases: the paper's EGM and joint training, which stops early by its held-out rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from scipy.stats import norm

from bgmiv import training
from bgmiv.bgm.config import CovariateConfig, JointTraining
from bgmiv.bgm.covariates import build_covariates
from bgmiv.bgm.initial import EGMProgram, JointProgram, JointState, critic_loss, joint_loss, sliced_distance
from bgmiv.bgm.model import BGMIVModel, evaluate_fold
from bgmiv.errors import FitInterrupted
from bgmiv.integrate import GaussHermite
from bgmiv.nn.layers import MLP
from bgmiv.progress import Reporter
from bgmiv.training import Checkpoint, TrainingData, run_phase

PROGRAMS = {
    "egm": EGMProgram(iterations=100, batch_size=8, learning_rate=5e-3, critic_steps=2, critic_hidden=(8,), chunk=7),
    "joint": JointProgram(iterations=100, batch_size=8, learning_rate=1e-2, n_directions=4, chunk=7),
}
# The adversarial term of the first moves with the critic; the rest must fall.
FIT_PARTS = {"egm": ("covariates", "treatment", "outcome"), "joint": ("loss",)}


@pytest.fixture(scope="module", params=list(PROGRAMS))
def run(request: pytest.FixtureRequest, tiny: Any) -> Any:
    """Name, program, state before, state after and history of a whole phase."""
    program = PROGRAMS[request.param]
    given = jax.random.key(1) if request.param == "egm" else jnp.asarray(jnp.inf)
    before = jax.jit(program.init)(tiny.model, given)
    after, history = run_phase(program, before, tiny.data, jax.random.key(2))
    return request.param, program, before, after, history


def all_changed(one: Any, two: Any) -> bool:
    return not any(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


def test_it_trains_every_part(run: Any) -> None:
    name, program, before, after, history = run
    losses = [sum(row.metrics[part] for part in FIT_PARTS[name]) for row in history]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    assert all_changed(before.learner.net, after.learner.net)
    assert [row.step for row in history] == [*range(7, 100, 7), 100]
    assert {row.phase for row in history} == {program.name}
    assert all(set(row.metrics) == set(program.metric_names) for row in history)
    if name == "egm":
        # The last bias of a critic cancels between the two terms of its loss and so never moves.
        assert all_changed(before.critic.net.layers, after.critic.net.layers)


def test_neither_chunks_nor_padding_change_the_result(run: Any, tiny: Any, same: Any) -> None:
    _, program, before, after, _ = run
    rows = jax.tree.map(lambda leaf: leaf.at[20:].set(1e6), tiny.data.rows)
    again, history = run_phase(replace(program, chunk=50), before, tiny.data._replace(rows=rows), jax.random.key(2))
    assert len(history) == 2
    # Bitwise: step t draws from fold_in(key, t), and the chunk's length is no part of the compiled program.
    if isinstance(again, JointState):
        # Chunks end with an evaluation.
        again = again._replace(evaluations=after.evaluations)
    assert same(after, again)


def test_egm_integrates_the_outcome_over_the_residuals_spread(tiny: Any) -> None:
    spread = {"integration": GaussHermite(8), "treatment_spread": "residual"}
    whole = replace(PROGRAMS["egm"], **spread)
    before, key = jax.jit(whole.init)(tiny.model, jax.random.key(1)), jax.random.key(2)
    wide = jax.jit(whole.step)(before, tiny.data, key)
    assert float(wide[0].treatment_error) == pytest.approx(0.99 + 0.01 * float(wide[1]["treatment"]))
    # Without spread the integral is the plug-in at the mean treatment, the default.
    narrow = jax.jit(whole.step)(before._replace(treatment_error=jnp.zeros(())), tiny.data, key)
    plug_in = jax.jit(PROGRAMS["egm"].step)(before, tiny.data, key)
    assert float(narrow[1]["outcome"]) == pytest.approx(float(plug_in[1]["outcome"]), rel=1e-4)
    assert float(wide[1]["outcome"]) != pytest.approx(float(plug_in[1]["outcome"]), rel=1e-4)


def test_critic_loss_of_a_linear_critic() -> None:
    # D(z) = s . z has slope s everywhere, so the penalty is (|s| - 1)^2 whatever the mixing.
    slope = np.asarray([[0.3], [-0.4], [1.2]], np.float32)
    critic = eqx.tree_at(lambda net: net.outputs[0].kernel, MLP(3, (), 1, key=jax.random.key(0)), jnp.asarray(slope))
    rng = np.random.default_rng(0)
    fake, real = rng.normal(size=(2, 6, 3)).astype(np.float32)
    got = jax.jit(critic_loss)(critic, fake, real, rng.uniform(size=6).astype(np.float32), 10.0)
    expected = ((fake - real) @ slope).mean() + 10.0 * (np.linalg.norm(slope) - 1.0) ** 2
    assert float(got) == pytest.approx(float(expected), rel=1e-4)


def test_egm_needs_no_covariates(tiny: Any) -> None:
    without = build_covariates((), 4, CovariateConfig(dense_hidden=(8,)), key=jax.random.key(0))
    bare = eqx.tree_at(lambda m: m.covariates, tiny.model, without)
    rows = tiny.data.rows._replace(v=jnp.zeros((24, 0)))
    state = PROGRAMS["egm"].init(bare, jax.random.key(1))
    _, metrics = jax.eval_shape(PROGRAMS["egm"].step, state, tiny.data._replace(rows=rows), jax.random.key(2))
    assert metrics["loss"].shape == ()


def test_sliced_distance_of_shifted_quantiles() -> None:
    n = 200
    quantiles = norm.ppf((np.arange(n) + 0.5) / n).astype(np.float32)
    z = np.random.default_rng(0).permutation(quantiles)[:, None] + np.float32(0.7)
    got = jax.jit(sliced_distance)(z, np.asarray([[2.0], [-5.0]], np.float32))
    assert float(got) == pytest.approx(0.7**2, rel=1e-3)


def test_sliced_distance_of_rows_drawn_twice_is_that_of_a_sort() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(20, 3)).astype(np.float32)[rng.integers(0, 20, 32)]
    directions = rng.normal(size=(5, 3)).astype(np.float32)
    projected = directions / np.linalg.norm(directions, axis=1, keepdims=True) @ z.T
    expected = np.mean((np.sort(projected, axis=1) - norm.ppf((np.arange(32) + 0.5) / 32)) ** 2)
    got, slope = jax.jit(jax.value_and_grad(sliced_distance))(z, directions)
    assert float(got) == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(slope).all()


def test_outcome_does_not_teach_the_treatments_spread(tiny: Any) -> None:
    rows = jax.tree.map(lambda leaf: leaf[:8], tiny.data.rows)
    louder = rows._replace(y=5.0 * rows.y)
    directions = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)

    @jax.jit
    def slope(rows: Any) -> Any:
        def loss(model: Any) -> jax.Array:
            noise = jnp.zeros((8, 0))
            return joint_loss(model, rows, directions, noise, jax.random.key(0), PROGRAM)[0]

        return jax.grad(loss)(tiny.model).treatment.outputs[0].kernel

    one, two = np.asarray(slope(rows)), np.asarray(slope(louder))
    # The second raw output is the spread.
    np.testing.assert_allclose(one[:, 1], two[:, 1], rtol=1e-4, atol=1e-6)
    assert not np.allclose(one[:, 0], two[:, 0], rtol=1e-2)


RULE = GaussHermite(2)
PROGRAM = JointProgram(
    iterations=60,
    batch_size=8,
    learning_rate=0.05,
    n_directions=4,
    chunk=5,
    tolerance=1.05,
    patience=3,
    integration=RULE,
)


def held_out_loss(model: BGMIVModel, data: TrainingData) -> Array:
    return evaluate_fold(model, RULE, data).outcome_loss


INIT = jax.jit(JointProgram.init, static_argnums=0)
EVALUATE = jax.jit(JointProgram.evaluate, static_argnums=0)
STEP = jax.jit(JointProgram.step, static_argnums=0)
DECAYED = replace(PROGRAM, weight_decay=1000.0)


@pytest.fixture(scope="module")
def held(tiny: Any) -> TrainingData:
    """The twenty rows with six of them held out."""
    return tiny.data._replace(fold_start=jnp.asarray(4, jnp.int32), fold_size=jnp.asarray(6, jnp.int32))


def begin(program: JointTraining, model: BGMIVModel) -> JointState:
    return INIT(program, model, jnp.asarray(jnp.inf))


def with_best(state: JointState, **changes: Any) -> JointState:
    """The state with something else known of the best model."""
    return state._replace(best=state.best._replace(**changes))


class TestEvaluation:
    """A state made so that the lowest loss before stands in a chosen ratio to the model's own."""

    @pytest.fixture
    def state(self, tiny: Any, other: Any) -> JointState:
        """A newest model, and another one as the best so far."""
        return with_best(begin(PROGRAM, tiny.model), networks=other.model, stale=jnp.asarray(2, jnp.int32))

    @pytest.mark.parametrize("ratio", [0.2, 1.04])
    def test_a_model_not_clearly_worse_is_kept(
        self, state: JointState, held: TrainingData, same: Any, ratio: float
    ) -> None:
        loss = held_out_loss(state.learner.net, held)
        after = EVALUATE(PROGRAM, with_best(state, loss=loss / ratio), held)
        assert same(after.best.networks, state.learner.net)
        assert int(after.best.stale) == 0
        assert float(after.best.loss) == pytest.approx(float(loss) * min(1.0, 1.0 / ratio), rel=1e-5)

    @pytest.mark.parametrize("ratio", [1.06, 5.0])
    def test_a_clearly_worse_one_is_not(self, state: JointState, held: TrainingData, same: Any, ratio: float) -> None:
        before = with_best(state, loss=held_out_loss(state.learner.net, held) / ratio)
        after = EVALUATE(PROGRAM, before, held)
        assert same(after.best.networks, before.best.networks)
        assert int(after.best.stale) == 3
        assert float(after.best.loss) == float(before.best.loss)

    def test_no_number_is_clearly_worse(self, state: JointState, held: TrainingData, same: Any) -> None:
        broken = jax.tree.map(lambda leaf: leaf + jnp.nan, state.learner.net)
        after = EVALUATE(
            PROGRAM, with_best(state._replace(learner=state.learner._replace(net=broken)), loss=jnp.asarray(1e9)), held
        )
        assert same(after.best.networks, state.best.networks)
        assert int(after.best.stale) == 3

    def test_without_held_out_rows_the_newest_is_kept(self, state: JointState, tiny: Any, same: Any) -> None:
        after = EVALUATE(PROGRAM, with_best(state, loss=jnp.asarray(1e-9)), tiny.data)
        assert same(after.best.networks, state.learner.net)
        assert int(after.best.stale) == 0

    def test_patience(self, state: JointState, held: TrainingData) -> None:
        worse = with_best(state, loss=jnp.asarray(1e-9), stale=jnp.zeros((), jnp.int32))
        ends = []
        for _ in range(4):
            worse = EVALUATE(PROGRAM, worse, held)
            ends.append(bool(PROGRAM.stopped(worse)))
        assert ends == [False, False, True, True]

    def test_once_stopped_nothing_is_kept_any_more(self, state: JointState, held: TrainingData, same: Any) -> None:
        """Training goes on while other members do, and must not change what a run of its own would have left."""
        over = with_best(state, loss=jnp.asarray(1e9), stale=jnp.asarray(3, jnp.int32))
        after = EVALUATE(PROGRAM, over, held)
        assert same(after.best.networks, over.best.networks)
        assert (int(after.best.stale), float(after.best.loss)) == (3, float(over.best.loss))
        assert bool(PROGRAM.stopped(after))


def by_hand(tiny: Any, data: TrainingData, key: jax.Array) -> tuple[int, BGMIVModel, float]:
    """The step at which training ends, the model that is kept and the lowest loss, one step at a time."""
    state, kept, lowest, stale = begin(PROGRAM, tiny.model), tiny.model, np.inf, 0
    for t in range(60):
        state, _ = STEP(PROGRAM, state, data, jax.random.fold_in(key, t))
        if (t + 1) % 5:
            continue
        loss = float(held_out_loss(state.learner.net, data))
        kept, stale = (state.learner.net, 0) if loss <= 1.05 * lowest else (kept, stale + 1)
        lowest = min(loss, lowest)
        if stale == 3:
            return t + 1, kept, lowest
    raise AssertionError("the example must stop early")


class Interrupt(Reporter):
    """A reporter that raises Ctrl-C after some chunks."""

    def __init__(self, chunks: int) -> None:
        self.left = chunks

    def start(self, phase: str, total: int) -> None:
        pass

    def advance(self, steps: int, metrics: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def finish(self) -> None:
        pass


class TestWholeRuns:
    """A learning rate at which fourteen rows are soon memorised."""

    def test_training_ends_when_evaluations_bring_nothing_and_keeps_the_best(
        self, tiny: Any, held: TrainingData
    ) -> None:
        key = jax.random.key(2)
        state, history = run_phase(PROGRAM, begin(PROGRAM, tiny.model), held, key)
        done, kept, lowest = by_hand(tiny, held, key)
        assert [row.step for row in history] == list(range(5, done + 1, 5))
        assert bool(PROGRAM.stopped(state))
        assert float(state.best.loss) == pytest.approx(lowest, rel=1e-3)
        assert PROGRAM.result(state) is state.best.networks
        for one, two in zip(jax.tree.leaves(state.best.networks), jax.tree.leaves(kept), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)
        assert float(held_out_loss(state.learner.net, held)) > 1.05 * float(state.best.loss)

    @pytest.mark.parametrize("before_the_end", [0, 1])
    def test_an_interrupted_run_stops_where_the_whole_one_does(
        self,
        tiny: Any,
        held: TrainingData,
        same: Any,
        tmp_path: Path,
        before_the_end: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Also when the chunk after which it stops was its last before the interruption."""
        monkeypatch.setattr(training, "_SECONDS_BETWEEN_SAVES", 0.0)

        def run(**settings: Any) -> Any:
            return run_phase(PROGRAM, begin(PROGRAM, tiny.model), held, jax.random.key(2), **settings)

        whole, history = run()
        assert history[-1].step < 60
        with pytest.raises(FitInterrupted):
            run(checkpoint=Checkpoint(tmp_path, "a"), reporter=Interrupt(len(history) - before_the_end))
        resumed, again = run(checkpoint=Checkpoint(tmp_path, "a"))
        assert same(whole, resumed)
        assert history == again

    def test_members_that_stop_at_different_times_are_the_single_runs(self, tiny: Any, other: Any) -> None:
        keys = jax.random.split(jax.random.key(3), 3)
        starts, models = [4, 10, 0], [tiny.model, other.model, tiny.model]
        folds = [
            tiny.data._replace(fold_start=jnp.asarray(start, jnp.int32), fold_size=jnp.asarray(6, jnp.int32))
            for start in starts
        ]
        begun = [begin(PROGRAM, model) for model in models]
        alone = [run_phase(PROGRAM, *each) for each in zip(begun, folds, keys, strict=True)]
        assert len({history[-1].step for _, history in alone}) > 1, "the members must stop at different times"
        data = tiny.data._replace(fold_start=jnp.asarray(starts), fold_size=jnp.full(3, 6))
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *begun)
        together, history = run_phase(PROGRAM, stacked, data, keys)
        assert history[-1].step == max(own[-1].step for _, own in alone)
        for i, (state, own) in enumerate(alone):
            for one, two in zip(
                jax.tree.leaves(together.best.networks), jax.tree.leaves(state.best.networks), strict=True
            ):
                np.testing.assert_allclose(one[i], two, rtol=1e-3, atol=1e-3)
            for mine, row in zip(history, own, strict=False):
                assert mine.metrics["loss"][i] == pytest.approx(row.metrics["loss"], rel=1e-3)  # type: ignore[index]


class TestWeightDecay:
    def test_kernels_of_treatment_and_outcome_shrink_and_nothing_else(self, tiny: Any) -> None:
        """A decay of 1000 takes away 50 times a kernel at a step size of 0.05, by which Adam itself moves at most."""
        after, _ = STEP(DECAYED, begin(DECAYED, tiny.model), tiny.data, jax.random.key(1))
        moved = jax.tree.map(lambda new, old: np.asarray(new - old), after.learner.net, tiny.model)
        for part in ("treatment", "outcome"):
            before, change = getattr(tiny.model, part), getattr(moved, part)
            for name in ("layers", "outputs"):
                for was, now in zip(getattr(before, name), getattr(change, name), strict=True):
                    assert np.abs(now.kernel + 50.0 * was.kernel).max() < 0.051
                    assert np.abs(now.kernel).max() > 1.0
                    assert np.abs(now.bias).max() < 0.051
        for leaf in jax.tree.leaves(moved.covariates):
            assert np.abs(leaf).max() < 0.051
