"""An interrupted fit goes on from its checkpoint and ends where an uninterrupted one does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgmiv import BGMIV, FitInterrupted, training
from bgmiv.bgm.config import CovariateConfig, ModelConfig
from bgmiv.errors import ConfigError, StoreError
from bgmiv.integrate import GaussHermite
from bgmiv.progress import HistoryRow, Reporter
from bgmiv.training import Checkpoint

FILE = "unfinished-fit.checkpoint"


class InterruptAfter(Reporter):
    """A reporter that raises Ctrl-C after some chunks of a phase."""

    def __init__(self, phase: str, chunks: int) -> None:
        self.phase, self.left, self.running = phase, chunks, ""

    def start(self, phase: str, total: int) -> None:
        self.running = phase

    def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
        if self.running.endswith(self.phase):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    def finish(self) -> None:
        pass


class NoTraining(InterruptAfter):
    """A reporter of a fit that must not begin."""

    def __init__(self) -> None:
        super().__init__("", 0)

    def start(self, phase: str, total: int) -> None:
        if phase != "preparation":
            pytest.fail(f"{phase} has begun")


@pytest.fixture(scope="module")
def data():
    from bgmiv.data import IVData

    rng = np.random.default_rng(3)
    w, v, u = rng.normal(size=(3, 60))
    x = w + v + u
    return IVData.from_arrays(2 * x + v - u, x, instruments=w, covariates=v)


def with_small_networks(config):
    shapes = CovariateConfig(dense_hidden=(8,))
    return replace(config, model=ModelConfig(treatment_hidden=(8,), outcome_hidden=(8,), covariates=shapes))


@pytest.fixture(scope="module")
def config():
    base = with_small_networks(
        BGMIV(preset="paper-qmc", batch_size=16, epochs=4, iterations=6, random_state=0)._config()
    )
    return replace(base, initial=replace(base.initial, chunk=2), alternating=replace(base.alternating, chunk=1))


@pytest.fixture(scope="module")
def whole(config, data):
    return config.fit(data, 5)


@pytest.mark.parametrize(("phase", "chunks"), [("EGM warm start", 2), ("alternating updates", 2)])
def test_resumed_fit_equals_whole_fit(
    config, data, whole, tmp_path: Path, phase: str, chunks: int, monkeypatch
) -> None:
    monkeypatch.setattr(training, "_SECONDS_BETWEEN_SAVES", 0.0)
    kept = replace(config, checkpoint=str(tmp_path))
    with pytest.raises(FitInterrupted, match="same checkpoint folder"):
        kept.fit(data, 5, InterruptAfter(phase, chunks))
    assert (tmp_path / FILE).exists()
    resumed = kept.fit(data, 5)
    for a, b in zip(jax.tree.leaves(whole.model), jax.tree.leaves(resumed.model), strict=True):
        np.testing.assert_array_equal(a, b)
    assert resumed.history == whole.history
    assert list(tmp_path.iterdir()) == [], "a whole fit leaves no checkpoint behind"


@pytest.fixture(scope="module")
def several():
    """Two members that stop early, at different steps, and then alternate."""
    model = BGMIV(networks=True, members=2, batch_size=16, epochs=3, iterations=40, random_state=0)
    base = with_small_networks(model._config())
    assert base.last_stage is not None
    return replace(
        base,
        last_stage=replace(base.last_stage, fourier_features=10),
        initial=replace(base.initial, learning_rate=0.1, chunk=2, patience=2, tolerance=1.0),
        alternating=replace(base.alternating, integration=GaussHermite(2), chunk=1),
    )


@pytest.fixture(scope="module")
def several_whole(several, data):
    fitted = several.fit(data, 5)
    steps = [row.step for row in fitted.history if row.phase == "joint training"]
    assert 4 < steps[-1] < 40, "the members must stop early"
    return fitted, len(steps)


# The last chunk of the first phase, the one after which it stops, is counted from its end.
@pytest.mark.parametrize(
    ("phase", "chunks"), [("joint training", 1), ("joint training", 0), ("alternating updates", 1)]
)
def test_resumed_members_equal_those_of_a_whole_fit(
    several, data, several_whole, tmp_path: Path, phase: str, chunks: int, monkeypatch
) -> None:
    monkeypatch.setattr(training, "_SECONDS_BETWEEN_SAVES", 0.0)
    whole, last = several_whole
    kept = replace(several, checkpoint=str(tmp_path))
    with pytest.raises(FitInterrupted, match="same checkpoint folder"):
        kept.fit(data, 5, InterruptAfter(phase, chunks or last))
    resumed = kept.fit(data, 5)
    assert len(resumed.members) == len(whole.members) == 2
    for one, two in zip(whole.members, resumed.members, strict=True):
        for a, b in zip(jax.tree.leaves(one.model), jax.tree.leaves(two.model), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(one.held_out_rows, two.held_out_rows)
        assert one.history == two.history
        assert (one.held_out, one.training) == (two.held_out, two.training)
    # Each member's own history survives, not the mean over members.
    losses = [[row.metrics["loss"] for row in member.history] for member in resumed.members]
    assert all(one != two for one, two in zip(*losses, strict=True))
    assert resumed.evidence == whole.evidence
    assert list(tmp_path.iterdir()) == [], "a whole fit leaves no checkpoint behind"


def test_interruption_without_checkpoint_says_what_would_help(config, data) -> None:
    with pytest.raises(FitInterrupted, match="give a checkpoint folder"):
        config.fit(data, 5, InterruptAfter("EGM warm start", 1))


STATE = {"a": jnp.ones(3), "b": jnp.arange(2)}


def _save(folder: Path, mark: str = "a") -> None:
    with suppress(KeyboardInterrupt), Checkpoint(folder, mark) as checkpoint:
        checkpoint.save("warm start", 2, STATE, [HistoryRow("warm start", 2, {"loss": 1.0})], last=False)
        raise KeyboardInterrupt


def test_another_fits_checkpoint_is_refused(tmp_path: Path) -> None:
    _save(tmp_path)
    with pytest.raises(ConfigError, match="other data, settings or seed"), Checkpoint(tmp_path, "b"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [FILE], "and left as it is"


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    _save(tmp_path)
    path = tmp_path / FILE
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(StoreError, match=r"damaged.*delete it"), Checkpoint(tmp_path, "a"):
            pass
    for end in (0, 40, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(StoreError, match=r"damaged.*delete it"), Checkpoint(tmp_path, "a"):
            pass


def test_one_fit_at_a_time_uses_a_folder(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), Checkpoint(tmp_path, "a") as checkpoint:
        checkpoint.save("warm start", 2, STATE, [], last=False)
        with pytest.raises(ConfigError, match="another fit that is running"), Checkpoint(tmp_path, "a"):
            pass
        raise KeyboardInterrupt
    with Checkpoint(tmp_path, "a") as checkpoint:
        assert checkpoint.resume("warm start", STATE).step == 2
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_folder_is_said_before_training(config, data, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder, why in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "below", "Not a directory")):
        with pytest.raises(StoreError, match=rf"file.* cannot be written: .*{why}\. "):
            replace(config, checkpoint=str(folder)).fit(data, 5, NoTraining())
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("room", [0, 200_000, 1_000_000])
def test_a_full_disk_is_said_before_training(config, data, tmp_path: Path, room: int) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # What a full disk does to a file, a limit on the size of files does as well.
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"cannot be written: .* Make room"):
            replace(config, checkpoint=str(tmp_path)).fit(data, 5, NoTraining())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_saves_are_spaced_and_leave_no_temporary_file(tmp_path: Path) -> None:
    with Checkpoint(tmp_path, "a") as checkpoint:
        checkpoint.save("warm start", 2, STATE, [], last=False)
        before = (tmp_path / FILE).read_bytes()
        checkpoint.save("warm start", 4, {"a": jnp.zeros(3)}, [], last=False)
        assert (tmp_path / FILE).read_bytes() == before
        checkpoint.save("warm start", 6, {"a": jnp.zeros(3)}, [], last=True)
        assert (tmp_path / FILE).read_bytes() != before
        assert {path.suffix for path in tmp_path.iterdir()} == {".checkpoint", ".lock"}


def test_a_checkpoint_needs_a_seed(data) -> None:
    with pytest.raises(ConfigError, match="random_state"):
        BGMIV(checkpoint="somewhere").fit([1.0, 2.0], [0.0, 1.5], instruments=[1.0, 3.0])
