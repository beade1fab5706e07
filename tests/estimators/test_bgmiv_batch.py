"""Fits that train together are the single fits; and the presets without a warm start."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, get_args, get_type_hints

import jax
import numpy as np
import pytest

from bgmiv.covariates import CovariateConfig
from bgmiv.data import Identity, IVData, RoleScaling
from bgmiv.errors import ConfigError, DataError, DivergedError
from bgmiv.estimators.base import BatchEstimator
from bgmiv.estimators.bgmiv import BGMIV, PRESETS, BGMIVConfig, FittedBGMIV, without_instrument
from bgmiv.estimators.tsls import TSLSConfig
from bgmiv.infer import LatentMap
from bgmiv.integrate import GaussHermite, ObservedTreatment
from bgmiv.model import ModelConfig
from bgmiv.train import Alternating, DirectStart, WarmStart

N, MEMBERS = 60, 3


def tiny(config: BGMIVConfig) -> BGMIVConfig:
    """The same phases and rules with networks and a schedule of next to nothing; an absent phase stays absent."""
    shapes = CovariateConfig(
        dense_hidden=(8,),
        block_encoder_hidden=(8,),
        vector_features=(8, 4),
        vector_decoder_hidden=(8,),
        column_decoder_hidden=(8,),
        vector_noise=config.model.covariates.vector_noise,
        narrow_vector=config.model.covariates.narrow_vector,
    )
    iterations = 7 if config.warm_start.iterations is None else min(config.warm_start.iterations, 7)
    ensemble = config.ensemble
    if ensemble.members > 1:
        # So many that a data set of 60 rows has held-out ones.
        ensemble = replace(ensemble, members=2, held_out=0.4)
    return replace(
        config,
        batch_size=8,
        model=ModelConfig(treatment_hidden=(8,), outcome_hidden=(8,), covariates=shapes),
        ensemble=ensemble,
        warm_start=replace(config.warm_start, iterations=iterations, chunk=3),
        alternating=replace(config.alternating, epochs=min(config.alternating.epochs, 2), chunk=1),
        latent_map=LatentMap(steps=min(config.latent_map.steps, 5)),
    )


def scalar_data(seed: int, n: int = N) -> IVData:
    rng = np.random.default_rng(seed)
    w, v, u = rng.normal(size=(3, n))
    x = 5.0 + w + v + u
    return IVData.from_arrays(100.0 + 10.0 * (x + v + u), x, instruments=w, covariates={"age": v})


def vector_data(seed: int) -> IVData:
    rng = np.random.default_rng(seed)
    w, season, u = rng.normal(size=(3, N))
    x = w + season + u
    covariates = {"season": season, "proxy": rng.normal(size=(N, 12)) + season[:, None]}
    return IVData.from_arrays(x - season + u, x, instruments=w, covariates=covariates)


def binary_data(seed: int) -> IVData:
    rng = np.random.default_rng(seed)
    w, v, u = rng.normal(size=(3, N))
    return IVData.from_arrays(2.0 * (w + u > 0.0) + v + u, w + u > 0.0, instruments=w, covariates=v)


CASES: dict[str, tuple[BGMIVConfig, Any]] = {
    "direct start": (tiny(PRESETS["default"]()), scalar_data),
    "direct start, vector": (tiny(PRESETS["default"]()), vector_data),
    "direct start, binary": (tiny(PRESETS["default"]()), binary_data),
    "EGM and Algorithm 1, vector": (tiny(PRESETS["paper-qmc"]()), vector_data),
    "EGM and Algorithm 1, no instrument": (without_instrument(tiny(PRESETS["paper-qmc"]())), scalar_data),
    "Algorithm 1 alone": (tiny(PRESETS["default-no-egm"]()), scalar_data),
    "no training": (tiny(replace(PRESETS["default-no-egm"](), alternating=Alternating(epochs=0))), scalar_data),
}


def sets(make: Any) -> list[IVData]:
    return [make(seed) for seed in range(MEMBERS)]


def keys(n: int = MEMBERS) -> list[jax.Array]:
    return [jax.random.key(10 + i) for i in range(n)]


@cache
def together(case: str) -> tuple[FittedBGMIV | DivergedError, ...]:
    config, make = CASES[case]
    return config.fit_many(sets(make), keys())


@cache
def alone(case: str) -> list[FittedBGMIV]:
    config, make = CASES[case]
    return [config.fit(data, key) for data, key in zip(sets(make), keys(), strict=True)]


def predicted(fitted: Any, data: IVData) -> np.ndarray:
    assert isinstance(fitted, FittedBGMIV)
    return fitted.predict(data.treatment, data.covariates)


class TestMembersAreTheSingleFits:
    @pytest.fixture(params=list(CASES))
    def case(self, request: pytest.FixtureRequest) -> str:
        return request.param

    def test_predictions(self, case: str) -> None:
        query = CASES[case][1](MEMBERS)
        scale = query.outcome.std()
        singles = [predicted(fitted, query) for fitted in alone(case)]
        for member, single in zip(together(case), singles, strict=True):
            np.testing.assert_allclose(predicted(member, query), single, rtol=0.0, atol=1e-4 * scale)
        # Members lie far further apart than that, so that none could stand in for another.
        assert all(np.abs(singles[i] - singles[i - 1]).max() > 1e-2 * scale for i in range(MEMBERS))

    def test_all_that_a_fit_keeps(self, case: str) -> None:
        for member, single in zip(together(case), alone(case), strict=True):
            assert isinstance(member, FittedBGMIV)
            assert (member.config, member.schema) == (single.config, single.schema)
            assert len(member.members) == len(single.members) == member.config.ensemble.members
            for mine, theirs in zip(member.members, single.members, strict=True):
                assert mine.training_latents.shape == theirs.training_latents.shape
                np.testing.assert_allclose(mine.training_latents, theirs.training_latents, rtol=1e-3, atol=1e-3)
                assert jax.tree.structure(mine.model) == jax.tree.structure(theirs.model)
                for one, two in zip(jax.tree.leaves(mine.model), jax.tree.leaves(theirs.model), strict=True):
                    assert (one.shape, one.dtype) == (two.shape, two.dtype)
                np.testing.assert_array_equal(mine.held_out_rows, theirs.held_out_rows)
                assert len(mine.held_out_rows) == (24 if len(member.members) > 1 else 0)
            np.testing.assert_array_equal(member.scaler.outcome.shift, single.scaler.outcome.shift)
            assert member.verdict.level == single.verdict.level

    def test_each_has_its_own_history(self, case: str) -> None:
        config = CASES[case][0]
        phases = ["warm start"] * bool(config.warm_start.iterations) + ["alternating updates"] * bool(
            config.alternating.epochs
        )
        for member, single in zip(together(case), alone(case), strict=True):
            assert isinstance(member, FittedBGMIV)
            assert [(row.phase, row.step) for row in member.history] == [
                (row.phase, row.step) for row in single.history
            ]
            assert list(dict.fromkeys(row.phase for row in member.history)) == phases
            for one, two in zip(member.history, single.history, strict=True):
                assert all(isinstance(value, float) for value in one.metrics.values())
                assert one.metrics == pytest.approx(two.metrics, rel=1e-3, abs=1e-3)


DIRECT, SCALARS = CASES["direct start"]


class TestTogether:
    def test_the_same_keys_give_the_same_fits(self) -> None:
        query = scalar_data(9)
        again = DIRECT.fit_many(sets(SCALARS), keys())
        for one, two in zip(together("direct start"), again, strict=True):
            np.testing.assert_array_equal(predicted(one, query), predicted(two, query))

    def test_results_keep_the_order_of_the_data(self) -> None:
        query = scalar_data(9)
        turned = DIRECT.fit_many(sets(SCALARS)[::-1], keys()[::-1])
        for one, two in zip(together("direct start"), turned[::-1], strict=True):
            np.testing.assert_allclose(predicted(one, query), predicted(two, query), rtol=0.0, atol=1e-2)

    def test_the_same_data_with_other_keys_is_another_fit(self) -> None:
        data, query = scalar_data(0), scalar_data(9)
        one, two, _ = DIRECT.fit_many([data, data, scalar_data(1)], keys())
        assert not np.allclose(predicted(one, query), predicted(two, query), atol=1e-2)

    def test_progress_is_that_of_one_fit(self) -> None:
        @dataclass
        class Spy:
            phases: list[tuple[str, int]] = field(default_factory=list)
            steps: int = 0

            def start(self, phase: str, total: int) -> None:
                self.phases.append((phase, total))

            def advance(self, steps: int, metrics: Mapping[str, float]) -> None:
                self.steps += steps

            def finish(self) -> None:
                pass

        spy = Spy()
        CASES["EGM and Algorithm 1, no instrument"][0].fit_many(sets(scalar_data), keys(), spy)
        assert spy.phases == [("warm start", 7), ("alternating updates", 2)]
        assert spy.steps == 9

    def test_it_is_an_optional_part_of_the_plug(self) -> None:
        assert isinstance(BGMIVConfig(), BatchEstimator)
        assert not isinstance(TSLSConfig(), BatchEstimator)


def from_columns(**changes: Any) -> IVData:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, N))
    arguments = {"outcome": v + u, "treatment": w + u, "instruments": w, "covariates": {"age": v}, **changes}
    return IVData.from_arrays(**arguments)


NOISE = np.random.default_rng(1).normal(size=(N, 3))
LETTERS = np.array(list("ab") * (N // 2))
REGION = {"blocks": {"region": "categorical"}}
MISMATCHES: dict[str, tuple[IVData, IVData, str]] = {
    "rows": (scalar_data(0), scalar_data(1, N - 1), "have 60 and 59 rows"),
    "kind of the treatment": (from_columns(), from_columns(treatment=NOISE[:, 0] > 0.0), "'treatment'"),
    "number of instruments": (from_columns(), from_columns(instruments=NOISE[:, :2]), "'instruments'"),
    "covariates": (from_columns(), from_columns(covariates={"size": NOISE[:, 0]}), "covariate block 'age'"),
    "number of blocks": (from_columns(), from_columns(covariates=None), "have 1 and 0 blocks"),
    "kind of a block": (
        from_columns(),
        from_columns(covariates={"age": NOISE[:, 0] > 0.0}),
        "kind of covariate block 'age'",
    ),
    "width of a block": (
        from_columns(covariates={"proxy": NOISE}),
        from_columns(covariates={"proxy": NOISE[:, :2]}),
        "covariate block 'proxy'",
    ),
    "levels": (
        from_columns(covariates={"region": LETTERS}, **REGION),
        from_columns(covariates={"region": np.where(LETTERS == "a", "c", "b")}, **REGION),
        "levels of covariate block 'region'",
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("name", list(MISMATCHES))
    def test_data_of_other_shapes(self, name: str) -> None:
        one, other, words = MISMATCHES[name]
        with pytest.raises(DataError, match=words) as error:
            DIRECT.fit_many([one, one, other], keys())
        assert "data sets 0 and 2" in str(error.value)
        assert "one by one" in str(error.value)

    def test_the_twin_does_not_mind_other_instruments(self) -> None:
        one, other, _ = MISMATCHES["number of instruments"]
        twin = CASES["EGM and Algorithm 1, no instrument"][0]
        first, second, _ = twin.fit_many([one, other, one], [jax.random.key(0)] * 3)
        np.testing.assert_array_equal(predicted(first, one), predicted(second, one))

    @pytest.mark.parametrize(("n_data", "n_keys"), [(2, 3), (2, 1), (0, 0), (1, 0)])
    def test_one_key_a_data_set(self, n_data: int, n_keys: int) -> None:
        with pytest.raises(ConfigError, match=f"{n_keys} keys for {n_data} data sets"):
            DIRECT.fit_many(sets(SCALARS)[:n_data], keys(n_keys))

    def test_a_checkpoint(self, tmp_path: Any) -> None:
        with pytest.raises(ConfigError, match="checkpoint"):
            replace(DIRECT, checkpoint=str(tmp_path)).fit_many(sets(SCALARS), keys())
        assert list(tmp_path.iterdir()) == []

    def test_a_rule_that_cannot_integrate(self) -> None:
        continuous = replace(DIRECT, warm_start=replace(DIRECT.warm_start, integration=Broken()))
        with pytest.raises(ConfigError, match="broken"):
            continuous.fit_many(sets(SCALARS), keys())


@dataclass(frozen=True)
class Broken:
    def nodes(self, *arguments: Any) -> Any:
        raise ConfigError("a broken rule")


class TestDivergence:
    """Outcomes of 1e30, not scaled down, square to infinity in single precision."""

    CONFIGS: Mapping[str, BGMIVConfig] = {
        case: replace(CASES[case][0], scaling=RoleScaling(outcome=Identity()))
        for case in ("direct start", "EGM and Algorithm 1, no instrument", "Algorithm 1 alone")
    }

    @staticmethod
    def huge(seed: int) -> IVData:
        data = scalar_data(seed)
        return replace(data, outcome=1e30 * data.outcome)

    @pytest.mark.parametrize("case", list(CONFIGS))
    def test_one_member_does_not_spoil_the_others(self, case: str) -> None:
        config, query = self.CONFIGS[case], scalar_data(9)
        good = [scalar_data(0), scalar_data(1), scalar_data(2)]
        healthy = config.fit_many(good, keys())
        first, broken, last = config.fit_many([good[0], self.huge(1), good[2]], keys())
        np.testing.assert_array_equal(predicted(first, query), predicted(healthy[0], query))
        np.testing.assert_array_equal(predicted(last, query), predicted(healthy[2], query))
        for fitted, before in ((first, healthy[0]), (last, healthy[2])):
            assert isinstance(fitted, FittedBGMIV)
            assert isinstance(before, FittedBGMIV)
            assert fitted.history == before.history

        assert isinstance(broken, DivergedError)
        with pytest.raises(DivergedError) as own:
            config.fit(self.huge(1), keys()[1])
        assert (broken.phase, broken.step) == (own.value.phase, own.value.step)

    def test_all_members(self) -> None:
        results = self.CONFIGS["direct start"].fit_many([self.huge(i) for i in range(MEMBERS)], keys())
        assert len(results) == MEMBERS
        assert all(isinstance(result, DivergedError) for result in results)


class TestPresetsWithoutWarmStart:
    """The paper's ablation "BGM-IV (EGM=0)"."""

    def test_the_public_class_knows_every_preset(self) -> None:
        assert set(get_args(get_type_hints(BGMIV.__init__)["preset"])) == set(PRESETS)
        assert all(f'"{name}"' in (inspect.getdoc(BGMIV) or "") for name in PRESETS)

    def test_they_differ_from_their_presets_in_the_budget_alone(self) -> None:
        ablated, whole = PRESETS["paper-qmc-no-egm"](), PRESETS["paper-qmc"]()
        assert ablated.warm_start.iterations == 0
        assert replace(ablated, warm_start=whole.warm_start) == whole

        ablated, default = PRESETS["default-no-egm"](), PRESETS["default"]()
        assert (ablated.warm_start.iterations, ablated.alternating.epochs) == (0, whole.alternating.epochs)
        undone = replace(ablated, alternating=replace(ablated.alternating, epochs=0), warm_start=default.warm_start)
        assert undone == default

    @pytest.mark.parametrize("preset", ["default-no-egm", "paper-qmc-no-egm"])
    def test_they_fit_by_algorithm_1_alone(self, preset: str) -> None:
        data, small = scalar_data(0), {"epochs": 1, "batch_size": 16, "integration": GaussHermite(2)}
        model = BGMIV(preset, random_state=0, **small).fit(
            data.outcome, data.treatment, instruments=data.instruments, covariates=data.covariates
        )
        assert [(row.phase, row.step) for row in model.history_] == [("alternating updates", 1)]
        assert np.isfinite(model.predict(data.treatment, data.covariates)).all()

    @pytest.mark.parametrize("start", [WarmStart(iterations=0), DirectStart(iterations=0)])
    def test_without_a_warm_start_its_settings_do_not_matter(self, start: WarmStart | DirectStart) -> None:
        config, query = CASES["Algorithm 1 alone"][0], scalar_data(9)
        changed = replace(config, warm_start=replace(start, integration=ObservedTreatment(), learning_rate=0.5))
        fits: Sequence[FittedBGMIV] = [each.fit(scalar_data(0), keys()[0]) for each in (config, changed)]
        np.testing.assert_array_equal(predicted(fits[0], query), predicted(fits[1], query))
        # Algorithm 1 moves latents by little from where they begin: draws from the prior.
        assert abs(fits[0].training_latents.mean()) < 0.2
        assert 0.8 < fits[0].training_latents.std() < 1.2
