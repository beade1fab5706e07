"""A saved BGM-IV predicts what the fit did, to the last bit, and keeps what is known about the fit."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bgmiv import BGMIV, BGMIVConfig, FittedBGMIV, FixedAffine, GaussHermite, IVData, RoleScaling
from bgmiv.covariates import CovariateConfig, ImageConfig
from bgmiv.errors import ModelFileError, NotFittedError
from bgmiv.estimators.bgmiv import PRESETS, without_instrument
from bgmiv.estimators.bgmiv_document import CODEC, Parameters
from bgmiv.estimators.bgmiv_files import load_fit, save_fit
from bgmiv.infer import LatentMap
from bgmiv.infer.latent_posterior import LatentPosterior
from bgmiv.integrate import FiniteMixture, MonteCarlo
from bgmiv.model import LatentLayout, ModelConfig
from bgmiv.persist import parse_json

N = 60
RNG = np.random.default_rng(0)
W, AGE, U = RNG.normal(size=(3, N))
X = W + AGE + U
Y = 2.0 * X + AGE - U
REGION = RNG.choice(["nørth", "south", "west"], size=N)
PROXY = AGE[:, None] * RNG.normal(size=20) + 0.1 * RNG.normal(size=(N, 20)) + U[:, None] * RNG.normal(size=20)
PHOTO = RNG.integers(0, 256, size=(N, 8, 8))
TINY = ModelConfig(
    treatment_hidden=(4,),
    outcome_hidden=(4,),
    covariates=CovariateConfig(
        dense_hidden=(4,),
        block_encoder_hidden=(4,),
        vector_features=(4, 2),
        vector_decoder_hidden=(4,),
        column_decoder_hidden=(4,),
        images=ImageConfig(filters=(2, 2), conv_features=(4, 2), decoder_filters=(2, 2, 2)),
        score_features=(4, 2),
    ),
)
PARAMETERS = Parameters(
    **{name: value for name, value in BGMIV(random_state=0).get_params().items() if name != "checkpoint"}
)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    """Much is compiled here and little run: XLA's optimisations would cost more than they give."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def model() -> BGMIV:
    """Two trained members with small networks, each with rows held out."""
    made = BGMIV(
        latent_layout=(2, 1, 1, 1),
        batch_size=16,
        members=2,
        held_out=0.4,
        warm_start_iterations=5,
        random_state=3,
        integration=GaussHermite(2),
        scaling=RoleScaling(treatment=FixedAffine(1.0, 2.0)),
    )
    data = IVData.from_arrays(Y, X, instruments=W, covariates={"age": AGE})
    made.fitted_ = replace(made._config(), model=TINY).fit(data, jax.random.key(3))
    made.data_ = data
    made.seed_ = 3
    return made


def untrained(config: BGMIVConfig, data: IVData) -> FittedBGMIV:
    """A fit that stays at its starting weights: nothing has to be compiled for training."""
    small = replace(
        config,
        layout=LatentLayout(1, 1, 1, 1),
        batch_size=8,
        model=replace(TINY, covariates=replace(TINY.covariates, narrow_vector=config.model.covariates.narrow_vector)),
        ensemble=replace(config.ensemble, members=1, held_out=0.0),
        warm_start=replace(config.warm_start, iterations=0),
        alternating=replace(config.alternating, epochs=0),
    )
    return small.fit(data, jax.random.key(1)).with_uncertainty(data)


def again(fitted: FittedBGMIV, folder: Path) -> FittedBGMIV:
    save_fit(folder / "saved", fitted, PARAMETERS, 0, overwrite=False)
    return load_fit(folder / "saved").fitted


def test_a_trained_model_comes_back(model: BGMIV, tmp_path: Path) -> None:
    model.save(tmp_path / "fit")
    loaded = BGMIV.load(tmp_path / "fit")
    assert sorted(entry.name for entry in (tmp_path / "fit").iterdir()) == ["arrays.safetensors", "model.json"]
    query = {"age": np.linspace(-2.0, 2.0, 7)}
    mine, theirs = model.fitted_, loaded.fitted_
    assert np.array_equal(model.predict(0.3, query), loaded.predict(0.3, query))
    assert np.array_equal(mine.predict_members(0.3, query), theirs.predict_members(0.3, query))
    for i in range(2):
        assert np.array_equal(mine.latents(query, i), theirs.latents(query, i))
    one, other = model.predict_interval(0.3, query), loaded.predict_interval(0.3, query)
    for part in ("estimate", "lower", "upper", "in_support"):
        assert np.array_equal(getattr(one, part), getattr(other, part))
    assert loaded.get_params() == model.get_params()
    assert (loaded.seed_, loaded.verdict_, loaded.history_) == (3, model.verdict_, model.history_)
    assert (theirs.config, theirs.schema) == (mine.config, mine.schema)
    for one, other in zip(mine.members, theirs.members, strict=True):
        assert one.history
        assert (one.history, one.held_out, one.training) == (other.history, other.held_out, other.training)
        assert one.attempts == other.attempts
        np.testing.assert_array_equal(one.held_out_rows, other.held_out_rows)
        assert other.training_latents.shape == (0, 5)
        for a, b in zip(jax.tree.leaves(one.model), jax.tree.leaves(other.model), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_a_loaded_model_is_saved_as_the_same_bytes(model: BGMIV, tmp_path: Path) -> None:
    model.save(tmp_path / "one")
    BGMIV.load(tmp_path / "one").save(tmp_path / "two")
    for name in ("model.json", "arrays.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_names_that_are_refused_after_loading_as_before(model: BGMIV, tmp_path: Path) -> None:
    model.save(tmp_path / "fit")
    with pytest.raises(ValueError, match="'size'"):
        BGMIV.load(tmp_path / "fit").predict(0.3, {"size": AGE})


TABLE = {"age": AGE, "region": REGION, "proxy": PROXY, "photo": PHOTO}
DATA: dict[str, tuple[Callable[[], IVData], Any]] = {
    "no covariates": (lambda: IVData.from_arrays(Y, X, instruments=W), 0.5),
    "continuous": (lambda: IVData.from_arrays(Y, X, instruments=np.c_[W, U], covariates=np.c_[AGE, AGE**2]), 0.5),
    "all kinds of blocks": (
        lambda: IVData.from_arrays(Y, X, instruments=W, covariates=TABLE, blocks={"region": "categorical"}), 0.5,
    ),
    "levels of both": (
        lambda: IVData.from_arrays(Y > 0, REGION, instruments=W, covariates={"age": AGE, "on": U > 0}), "west",
    ),
    "levels of the outcome": (lambda: IVData.from_arrays(REGION, X > 0, instruments=W, covariates={"v": AGE}), True),
}  # fmt: skip


@pytest.mark.parametrize(("name", "preset"), [*((name, "default") for name in DATA), ("all kinds of blocks", "paper")])
def test_predictions_are_the_same_to_the_last_bit(name: str, preset: str, tmp_path: Path) -> None:
    make, treatment = DATA[name]
    data = make()
    fitted = untrained(replace(PRESETS[preset](), latent_map=LatentMap(steps=2)), data)
    loaded = again(fitted, tmp_path)
    assert (loaded.schema, loaded.config) == (fitted.schema, fitted.config)
    reduced = {"proxy", "photo"} if name == "all kinds of blocks" and preset == "default" else set()
    assert set(loaded.reduction.projections) == set(fitted.reduction.projections) == reduced
    for block in reduced:
        projections = [getattr(f.reduction.projections[block], "projection", None) for f in (fitted, loaded)]
        if projections[0] is not None:
            assert projections[0].basis.flags.c_contiguous == projections[1].basis.flags.c_contiguous
    v = data.covariates if data.covariates.shape[1] else None
    points = treatment if v is not None else [treatment] * 3
    mine, theirs = fitted.predict_members(points, v), loaded.predict_members(points, v)
    assert np.isfinite(mine).all()
    assert np.array_equal(mine, theirs)
    assert np.array_equal(fitted.predict(points, v), loaded.predict(points, v))
    if v is not None:
        assert np.array_equal(fitted.latents(v), loaded.latents(v))


def test_the_latent_posterior_gives_the_same_draws(tmp_path: Path) -> None:
    rule = LatentPosterior(n_chains=2, n_warmup=20, n_draws=4, seed=5)
    data = DATA["continuous"][0]()
    fitted = untrained(replace(PRESETS["paper"](), latent_map=rule), data)
    loaded = again(fitted, tmp_path)
    assert loaded.config.latent_map == rule
    v = data.covariates[:2]
    with pytest.warns(match=r"."):
        mine = fitted.predict(0.5, v)
    with pytest.warns(match=r"."):
        assert np.array_equal(mine, loaded.predict(0.5, v))


def test_the_twin_without_the_instrument(tmp_path: Path) -> None:
    fitted = untrained(without_instrument(PRESETS["default"]()), DATA["continuous"][0]())
    loaded = again(fitted, tmp_path)
    assert loaded.schema.instruments == ()
    assert np.array_equal(fitted.predict(0.5, np.c_[AGE, AGE]), loaded.predict(0.5, np.c_[AGE, AGE]))


@pytest.mark.parametrize("latents", [None, "encoder", "map", "posterior"])
@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_presets_config_comes_back(preset: Any, latents: Any) -> None:
    config = BGMIV(preset, latents=latents, random_state=0)._config()
    for one in (config, config.resolved(DATA["continuous"][0]().schema, 5000), without_instrument(config)):
        text = json.dumps(CODEC.encode(one), allow_nan=False).encode()
        assert CODEC.decode(parse_json(text, "config"), BGMIVConfig) == one


def test_parameters_are_the_estimators() -> None:
    names = [name for name in inspect.signature(BGMIV.__init__).parameters if name not in ("self", "checkpoint")]
    assert [field.name for field in fields(Parameters)] == names


def test_paths_of_this_computer_are_not_saved(tmp_path: Path) -> None:
    config = replace(PRESETS["default"](), checkpoint=str(tmp_path / "unfinished"))
    fitted = untrained(config, DATA["continuous"][0]())
    assert fitted.config.checkpoint is not None
    assert again(fitted, tmp_path).config == replace(fitted.config, checkpoint=None)
    assert "unfinished" not in (tmp_path / "saved" / "model.json").read_text()


def test_nothing_is_saved_before_a_fit(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        BGMIV().save(tmp_path / "fit")
    assert list(tmp_path.iterdir()) == []


def test_folders_are_replaced_only_if_asked(model: BGMIV, tmp_path: Path) -> None:
    model.save(tmp_path / "fit")
    with pytest.raises(ModelFileError, match="overwrite=True"):
        model.save(tmp_path / "fit")
    model.save(tmp_path / "fit", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.json").write_text("{}")
    with pytest.raises(ModelFileError, match="left as it is"):
        model.save(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "model.json").read_text() == "{}"


@dataclass(frozen=True)
class OwnRule:
    """An integration rule of a user."""

    def nodes(self, *arguments: Any) -> Any:
        return FiniteMixture().nodes(*arguments)


def test_what_could_not_be_opened_is_not_saved(model: BGMIV, tmp_path: Path) -> None:
    config = model.fitted_.config
    alien = replace(config, alternating=replace(config.alternating, integration=OwnRule()))
    broken = jax.tree.map(lambda leaf: leaf * np.nan, model.fitted_.model)
    for fitted, message in (
        (replace(model.fitted_, config=alien), "integration is a OwnRule and cannot be saved"),
        (replace(model.fitted_, members=(replace(model.fitted_.members[0], model=broken),)), "not finite"),
        (replace(model.fitted_, config=replace(config, batch_size=0.5)), "batch_size must be a whole number"),
    ):
        with pytest.raises(ModelFileError, match=message):
            save_fit(tmp_path / "fit", fitted, PARAMETERS, 0, overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_rules_given_to_the_constructor_come_back(tmp_path: Path, model: BGMIV) -> None:
    parameters = replace(PARAMETERS, integration=MonteCarlo(7), latent_layout=[2, 1, 1, 1], members=np.int64(2))
    save_fit(tmp_path / "fit", model.fitted_, parameters, 0, overwrite=False)
    assert load_fit(tmp_path / "fit").parameters == replace(parameters, latent_layout=(2, 1, 1, 1), members=2)
