"""The direct start's looks at held-out rows, what of it decays, and the noise on its latents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from bgmiv.errors import ConfigError, FitInterrupted
from bgmiv.integrate import GaussHermite
from bgmiv.model import BGMIVModel
from bgmiv.train import DirectStart, TrainingData, run_phase
from bgmiv.train.checkpoint import Checkpoint
from bgmiv.train.direct import DirectStartState, direct_loss
from bgmiv.train.looks import outcome_loss
from bgmiv.train.phases import warm_start

RULE = GaussHermite(2)
PROGRAM = DirectStart(
    iterations=60,
    batch_size=8,
    learning_rate=0.05,
    n_directions=4,
    chunk=5,
    tolerance=1.05,
    patience=3,
    integration=RULE,
)
LOSS = jax.jit(outcome_loss, static_argnums=1)
INIT = jax.jit(DirectStart.init, static_argnums=0)
REVIEW = jax.jit(DirectStart.review, static_argnums=0)
STEP = jax.jit(DirectStart.step, static_argnums=0)
# Both at once, to compile one step more and not two.
NOISED = replace(PROGRAM, weight_decay=1000.0, latent_noise=0.5)


@pytest.fixture(scope="module")
def held(tiny: Any) -> TrainingData:
    """The twenty rows with six of them held out."""
    return tiny.data._replace(fold_start=jnp.asarray(4, jnp.int32), fold_size=jnp.asarray(6, jnp.int32))


def begin(program: DirectStart, model: BGMIVModel) -> DirectStartState:
    return INIT(program, model, jax.random.key(0))


def same(one: Any, two: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


class TestReview:
    """A look at a state made so that the lowest loss before stands in a chosen ratio to the model's own."""

    @pytest.fixture
    def state(self, tiny: Any, other: Any) -> DirectStartState:
        """A newest model, and another one as the best so far."""
        return begin(PROGRAM, tiny.model)._replace(best=other.model, stale=jnp.asarray(2, jnp.int32))

    @pytest.mark.parametrize("ratio", [0.2, 0.99, 1.0, 1.04])
    def test_a_model_not_clearly_worse_is_kept(self, state: DirectStartState, held: TrainingData, ratio: float) -> None:
        loss = LOSS(state.model, RULE, held)
        after = REVIEW(PROGRAM, state._replace(best_loss=loss / ratio), held)
        assert same(after.best, state.model)
        assert int(after.stale) == 0
        assert float(after.best_loss) == pytest.approx(float(loss) * min(1.0, 1.0 / ratio), rel=1e-5)

    @pytest.mark.parametrize("ratio", [1.06, 5.0])
    def test_a_clearly_worse_one_is_not(self, state: DirectStartState, held: TrainingData, ratio: float) -> None:
        before = state._replace(best_loss=LOSS(state.model, RULE, held) / ratio)
        after = REVIEW(PROGRAM, before, held)
        assert same(after.best, before.best)
        assert int(after.stale) == 3
        assert float(after.best_loss) == float(before.best_loss)

    def test_small_steps_up_do_not_add_up(self, state: DirectStartState, held: TrainingData) -> None:
        """A look is compared with the lowest loss, not with that of the model kept last."""
        loss = float(LOSS(state.model, RULE, held))
        first = REVIEW(PROGRAM, state._replace(best_loss=jnp.asarray(loss / 1.04)), held)
        assert float(first.best_loss) == pytest.approx(loss / 1.04, rel=1e-6)
        second = REVIEW(PROGRAM, first._replace(best_loss=first.best_loss / 1.04), held)
        assert int(second.stale) == 1

    def test_no_number_is_clearly_worse(self, state: DirectStartState, held: TrainingData) -> None:
        broken = jax.tree.map(lambda leaf: leaf + jnp.nan, state.model)
        after = REVIEW(PROGRAM, state._replace(model=broken, best_loss=jnp.asarray(1e9)), held)
        assert same(after.best, state.best)
        assert int(after.stale) == 3

    def test_without_held_out_rows_the_newest_is_kept(self, state: DirectStartState, tiny: Any) -> None:
        after = REVIEW(PROGRAM, state._replace(best_loss=jnp.asarray(1e-9)), tiny.data)
        assert same(after.best, state.model)
        assert int(after.stale) == 0

    def test_patience(self, state: DirectStartState, held: TrainingData) -> None:
        worse = state._replace(best_loss=jnp.asarray(1e-9), stale=jnp.zeros((), jnp.int32))
        ends = []
        for _ in range(4):
            worse = REVIEW(PROGRAM, worse, held)
            ends.append(bool(PROGRAM.stopped(worse)))
        assert ends == [False, False, True, True]

    def test_once_stopped_nothing_is_kept_any_more(self, state: DirectStartState, held: TrainingData) -> None:
        """Training goes on while other members do, and must not change what a run of its own would have left."""
        over = state._replace(best_loss=jnp.asarray(1e9), stale=jnp.asarray(3, jnp.int32))
        after = REVIEW(PROGRAM, over, held)
        assert same(after.best, over.best)
        assert (int(after.stale), float(after.best_loss)) == (3, float(over.best_loss))
        assert bool(PROGRAM.stopped(after))


def by_hand(tiny: Any, data: TrainingData, key: jax.Array) -> tuple[int, BGMIVModel, float]:
    """The step at which training ends, the model that is kept and the lowest loss, one step at a time."""
    state, kept, lowest, stale = begin(PROGRAM, tiny.model), tiny.model, np.inf, 0
    for t in range(60):
        state, _ = STEP(PROGRAM, state, data, jax.random.fold_in(key, t))
        if (t + 1) % 5:
            continue
        loss = float(LOSS(state.model, RULE, data))
        kept, stale = (state.model, 0) if loss <= 1.05 * lowest else (kept, stale + 1)
        lowest = min(loss, lowest)
        if stale == 3:
            return t + 1, kept, lowest
    raise AssertionError("the example must stop early")


class Interrupt:
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

    def test_training_ends_when_looks_bring_nothing_and_keeps_what_they_brought(
        self, tiny: Any, held: TrainingData
    ) -> None:
        key = jax.random.key(2)
        state, history = run_phase(PROGRAM, begin(PROGRAM, tiny.model), held, key)
        done, kept, lowest = by_hand(tiny, held, key)
        assert [row.step for row in history] == list(range(5, done + 1, 5))
        assert bool(PROGRAM.stopped(state))
        assert float(state.best_loss) == pytest.approx(lowest, rel=1e-3)
        assert PROGRAM.result(state) is state.best
        for one, two in zip(jax.tree.leaves(state.best), jax.tree.leaves(kept), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)
        assert float(LOSS(state.model, RULE, held)) > 1.05 * float(state.best_loss)

    def test_held_out_rows_teach_nothing(self, tiny: Any, held: TrainingData) -> None:
        lying = held._replace(rows=held.rows._replace(y=held.rows.y.at[4:10].set(50.0)))
        honest, fooled = begin(PROGRAM, tiny.model), begin(PROGRAM, tiny.model)
        for t in range(10):
            key = jax.random.key(t)
            (honest, one), (fooled, two) = STEP(PROGRAM, honest, held, key), STEP(PROGRAM, fooled, lying, key)
            assert float(one["loss"]) == float(two["loss"])
        assert same(honest.model, fooled.model)
        assert float(LOSS(fooled.model, RULE, lying)) > 100.0

    @pytest.mark.parametrize("before_the_end", [0, 1])
    def test_an_interrupted_run_stops_where_the_whole_one_does(
        self, tiny: Any, held: TrainingData, tmp_path: Path, before_the_end: int
    ) -> None:
        """Also when the chunk after which it stops was its last before the interruption."""

        def run(**settings: Any) -> Any:
            return warm_start(PROGRAM, tiny.model, held, jax.random.key(2), **settings)

        model, history = run()
        assert history[-1].step < 60
        with pytest.raises(FitInterrupted):
            run(checkpoint=Checkpoint(tmp_path, "a", every=0.0), reporter=Interrupt(len(history) - before_the_end))
        resumed, again = run(checkpoint=Checkpoint(tmp_path, "a", every=0.0))
        assert same(model, resumed)
        assert history == again

    def test_members_that_stop_at_different_times_are_the_single_runs(self, tiny: Any, other: Any) -> None:
        keys = jax.random.split(jax.random.key(3), 3)
        starts, models = [4, 10, 0], [tiny.model, other.model, tiny.model]
        folds = [
            tiny.data._replace(fold_start=jnp.asarray(start, jnp.int32), fold_size=jnp.asarray(6, jnp.int32))
            for start in starts
        ]
        alone = [warm_start(PROGRAM, *each) for each in zip(models, folds, keys, strict=True)]
        assert len({history[-1].step for _, history in alone}) > 1, "the members must stop at different times"
        data = tiny.data._replace(fold_start=jnp.asarray(starts), fold_size=jnp.full(3, 6))
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
        together, history = warm_start(PROGRAM, stacked, data, keys)
        assert history[-1].step == max(own[-1].step for _, own in alone)
        for i, (model, own) in enumerate(alone):
            for one, two in zip(jax.tree.leaves(together), jax.tree.leaves(model), strict=True):
                np.testing.assert_allclose(one[i], two, rtol=1e-3, atol=1e-3)
            for mine, row in zip(history, own, strict=False):
                assert mine.metrics["loss"][i] == pytest.approx(row.metrics["loss"], rel=1e-3)  # type: ignore[index]


class TestWeightDecay:
    def test_kernels_of_treatment_and_outcome_shrink_and_nothing_else(self, tiny: Any) -> None:
        """A decay of 1000 takes away 50 times a kernel at a step size of 0.05, by which Adam itself moves at most."""
        after, _ = STEP(NOISED, begin(NOISED, tiny.model), tiny.data, jax.random.key(1))
        moved = jax.tree.map(lambda new, old: np.asarray(new - old), after.model, tiny.model)
        for part in ("treatment", "outcome"):
            before, change = getattr(tiny.model, part), getattr(moved, part)
            for name in ("layers", "outputs"):
                for was, now in zip(getattr(before, name), getattr(change, name), strict=True):
                    assert np.abs(now.kernel + 50.0 * was.kernel).max() < 0.051
                    assert np.abs(now.kernel).max() > 1.0
                    assert np.abs(now.bias).max() < 0.051
        for leaf in jax.tree.leaves(moved.covariates):
            assert np.abs(leaf).max() < 0.051


class TestLatentNoise:
    def test_treatment_and_outcome_see_moved_latents_and_the_rest_does_not(self, tiny: Any) -> None:
        model, rows = tiny.model, jax.tree.map(lambda leaf: leaf[:8], tiny.data.rows)
        rng = np.random.default_rng(0)
        directions = rng.normal(size=(4, 4)).astype(np.float32)
        moves = rng.normal(size=(8, 4)).astype(np.float32)

        @jax.jit
        def parts(moves: Any) -> Any:
            noise = jnp.zeros((8, 0))
            return direct_loss(model, RULE, rows, directions, noise, moves, jax.random.key(0), PROGRAM)[1]

        @jax.jit
        def raw(moves: Any) -> Any:
            z = jax.vmap(model.covariates.encode)(rows.v) + moves
            return z, jax.vmap(model.treatment_raw)(rows.w, z)

        still, moved = parts(np.zeros((8, 4), np.float32)), parts(moves)
        for name in ("prior", "covariates"):
            assert float(still[name]) == float(moved[name])
        _, raw_x = raw(moves)
        deviation = np.sqrt(np.log1p(np.exp(np.asarray(raw_x[:, 1], np.float64))) + 1e-6)
        expected = -norm.logpdf(rows.x, raw_x[:, 0], deviation).mean()
        assert float(moved["treatment"]) == pytest.approx(expected, rel=1e-4)
        assert abs(float(moved["treatment"]) - float(still["treatment"])) > 1e-3
        assert abs(float(moved["outcome"]) - float(still["outcome"])) > 1e-3

    def test_it_is_drawn_in_training_and_only_on_demand(self, tiny: Any) -> None:
        _, still = STEP(PROGRAM, begin(PROGRAM, tiny.model), tiny.data, jax.random.key(1))
        _, moved = STEP(NOISED, begin(NOISED, tiny.model), tiny.data, jax.random.key(1))
        for name in ("prior", "covariates"):
            assert float(still[name]) == pytest.approx(float(moved[name]), rel=1e-5)
        assert abs(float(moved["treatment"]) - float(still["treatment"])) > 1e-3
        assert abs(float(moved["outcome"]) - float(still["outcome"])) > 1e-3


class TestIterations:
    def test_left_open_they_follow_the_rows(self) -> None:
        open_ended = DirectStart(iterations=None)
        for n, iterations in ((50, 3000), (1000, 3000), (4000, 6000), (9000, 9000), (10**7, 30_000)):
            settled = open_ended.settled(n)
            assert (settled.iterations, settled.n_steps, settled.chunk) == (iterations, iterations, iterations // 10)
            assert settled == replace(open_ended, iterations=iterations, chunk=iterations // 10)
        assert PROGRAM.settled(10**6) is PROGRAM

    def test_open_ones_cannot_be_run(self, tiny: Any) -> None:
        with pytest.raises(ConfigError, match="settled"):
            warm_start(DirectStart(iterations=None), tiny.model, tiny.data, jax.random.key(0))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"latent_noise": -0.1}, "latent_noise"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"patience": 0}, "patience"),
        ({"tolerance": 0.9}, "tolerance"),
    ],
)
def test_settings_that_cannot_train_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        DirectStart(**settings)
