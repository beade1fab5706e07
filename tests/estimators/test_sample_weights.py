"""Sample weights and groups in the methods: honoured, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from linearmodels.iv import IV2SLS

from bgmiv import KIV, TSLS
from bgmiv.baselines.tsls import TSLSConfig
from bgmiv.bgm.config import CovariateConfig, JointTraining, ModelConfig
from bgmiv.bgm.estimator import PRESETS, BGMIVConfig
from bgmiv.bgm.fit import open_checkpoint
from bgmiv.data.ivdata import IVData
from bgmiv.effects import predict
from bgmiv.training import Checkpoint

N = 60
RNG = np.random.default_rng(0)
W, V, U = RNG.normal(size=(3, N))
X = W + V + U
Y = 2.0 * X - V + U
COUNTS = RNG.integers(0, 4, N)
STATES = np.repeat(np.arange(12), 5)


def sample(weights: Any = None, groups: Any = None, rows: Any = slice(None)) -> IVData:
    w, v, x, y = (a[rows] for a in (W, V, X, Y))
    return IVData.from_arrays(y, x, instruments=w, covariates={"age": v}, sample_weight=weights, clusters=groups)


class TestTwoStageLeastSquares:
    @pytest.mark.parametrize("config", [TSLSConfig(), TSLSConfig(use_instrument=False)], ids=["linear", "ols"])
    def test_whole_weights_are_repeated_rows(self, config: TSLSConfig) -> None:
        # A sieve's functions are scaled by the rows there are, so that only the curve is the same.
        weighted = config.fit(sample(COUNTS))
        repeated = config.fit(sample(rows=np.repeat(np.arange(N), COUNTS)))
        at = np.linspace(-2, 2, 5)
        np.testing.assert_allclose(predict(weighted, at, at), predict(repeated, at, at), rtol=1e-6)

    def test_weights_of_one_are_none(self) -> None:
        plain, ones = TSLSConfig().fit(sample()), TSLSConfig().fit(sample(np.full(N, 7)))
        np.testing.assert_allclose(ones.result.params, plain.result.params, rtol=1e-12)
        np.testing.assert_allclose(ones.result.std_errors, plain.result.std_errors, rtol=1e-12)

    def test_errors_are_clustered_by_groups(self) -> None:
        columns = {"instruments": W, "covariates": {"age": V}}
        model = TSLS(covariance="cluster").fit(Y, X, **columns, clusters=STATES, sample_weight=1.0 + COUNTS)
        found = model.fitted_.result.std_errors
        np.testing.assert_allclose(np.sqrt(np.diag(model.fitted_.covariance)), found, rtol=1e-10)
        reference = IV2SLS(Y, np.column_stack([np.ones(N), V]), X, W, weights=1.0 + COUNTS)
        clustered = reference.fit(cov_type="clustered", clusters=STATES, debiased=True).std_errors
        np.testing.assert_allclose(found, clustered, rtol=1e-10)
        assert found.iloc[-1] != pytest.approx(reference.fit(cov_type="robust").std_errors.iloc[-1], rel=1e-3)


def test_groups_are_kept_by_a_method_without_standard_errors() -> None:
    model = KIV(random_state=0).fit(Y, X, instruments=W, clusters=STATES)
    assert model.data_ is not None
    np.testing.assert_array_equal(model.data_.groups, STATES)


def small(preset: str = "default", **more: Any) -> BGMIVConfig:
    config = PRESETS[preset]()
    shapes = CovariateConfig(dense_hidden=(8,))
    return replace(
        config,
        batch_size=16,
        model=ModelConfig(treatment_hidden=(8,), outcome_hidden=(16,), covariates=shapes),
        ensemble=replace(config.ensemble, members=1, held_out=0.0),
        last_stage=None,
        **more,
    )


JOINT = JointTraining(iterations=400, learning_rate=1e-2, chunk=200)


class TestBGMIV:
    def test_rows_without_weight_teach_nothing(self) -> None:
        """Half of the rows say y = 5 + x, the others y = -5 + x; weights decide between them, in each member's rows."""
        config = small(initial=JOINT)
        config = replace(config, ensemble=replace(config.ensemble, members=2, held_out=0.4))
        x, w, v, states = (np.tile(column, 2) for column in (X, W, V, STATES))
        odd = np.arange(2 * N) % 2
        shift = np.where(odd, 5.0, -5.0)
        predictions = []
        for chosen in (0, 1):
            data = IVData.from_arrays(
                x + shift, x, instruments=w, covariates={"age": v}, sample_weight=odd == chosen, clusters=states
            )
            fitted = config.fit(data, 0)
            predictions.append(float(predict(fitted, [0.0], {"age": [0.0]})[0]))
        low, high = predictions
        assert low < -2.5
        assert high > 2.5

    def test_algorithm_1_weighs_the_rows_likelihoods(self) -> None:
        config = small("paper-qmc", initial=replace(JOINT, iterations=0))
        config = replace(config, alternating=replace(config.alternating, epochs=3, chunk=3))
        points = ([0.0, 1.0], {"age": [0.0, 1.0]})
        plain, ones, others = (predict(config.fit(sample(w), 0), *points) for w in (None, np.ones(N), 0.1 + COUNTS))
        np.testing.assert_allclose(ones, plain, rtol=1e-4, atol=1e-5)
        assert not np.allclose(others, plain, rtol=1e-4, atol=1e-5)

    def test_an_unfinished_fit_is_one_of_these_weights_and_groups(self, tmp_path: Any) -> None:
        config = replace(small(initial=JOINT), checkpoint=str(tmp_path))
        marks = set()
        for data in (sample(), sample(1.0 + COUNTS), sample(groups=STATES), sample(1.0 + COUNTS, STATES)):
            checkpoint = open_checkpoint(config, data, 0)
            assert isinstance(checkpoint, Checkpoint)
            marks.add(checkpoint._fingerprint)
        assert len(marks) == 4
