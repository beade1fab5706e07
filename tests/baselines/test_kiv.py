from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bgmiv.baselines import kiv
from bgmiv.baselines.kiv import KIV, KIVConfig, paper_preset
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import Identity, RoleScaling
from bgmiv.designs import DemandDesign, VectorProxyDesign
from bgmiv.effects import predict
from bgmiv.errors import ConfigError, DataError
from bgmiv.kernels import GaussianKernel, fit_features, median_lengthscales
from report.small_designs import LowDimDesign

SEED = 0


def gaussian(a: np.ndarray, b: np.ndarray, scales: np.ndarray) -> np.ndarray:
    differences = (a[:, None, :] - b[None, :, :]) / scales
    return np.exp(-0.5 * (differences**2).sum(axis=2))


def median_distances(values: np.ndarray) -> np.ndarray:
    upper = np.triu_indices(len(values), 1)
    return np.array([np.median(np.abs(column[:, None] - column)[upper]) for column in values.T])


class Textbook:
    """KIV as the paper writes it: dense kernel matrices, one linear solve for each penalty."""

    def __init__(self, data: IVData, config: KIVConfig) -> None:
        first, second = config._split(data, SEED)
        self.data = data
        x, z = self.inputs(data.treatment, data.covariates), self.instruments()
        self.y = (data.outcome - data.outcome.mean()) / data.outcome.std()
        self.first, self.second, self.points = first, second, x[first]
        self.x_scales, z_scales = median_distances(x[first]), median_distances(z[first])
        self.k_xx = gaussian(x[first], x[first], self.x_scales)
        self.k_x12 = gaussian(x[first], x[second], self.x_scales)
        self.k_zz = gaussian(z[first], z[first], z_scales)
        self.k_z12 = gaussian(z[first], z[second], z_scales)

    def inputs(self, treatment: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        train = np.column_stack([self.data.treatment, self.data.covariates])
        return (np.column_stack([treatment, covariates]) - train.mean(axis=0)) / train.std(axis=0)

    def instruments(self) -> np.ndarray:
        z = np.column_stack([self.data.instruments, self.data.covariates])
        return (z - z.mean(axis=0)) / z.std(axis=0)

    def gamma(self, penalty: float) -> np.ndarray:
        n = len(self.first)
        return np.linalg.solve(self.k_zz + n * penalty * np.eye(n), self.k_z12)

    def stage1_loss(self, penalty: float) -> float:
        gamma = self.gamma(penalty)
        return float(np.mean(1.0 - 2.0 * (self.k_x12 * gamma).sum(0) + (gamma * (self.k_xx @ gamma)).sum(0)))

    def alpha(self, penalty1: float, penalty2: float) -> np.ndarray:
        w = self.k_xx @ self.gamma(penalty1)
        left = w @ w.T + len(self.second) * penalty2 * self.k_xx
        return np.linalg.lstsq(left, w @ self.y[self.second], rcond=1e-15)[0]

    def original_loss(self, penalty1: float, penalty2: float) -> float:
        return float(np.mean((self.y[self.first] - self.k_xx @ self.alpha(penalty1, penalty2)) ** 2))

    def projected_loss(self, penalty1: float, penalty2: float) -> float:
        curve, n = self.k_xx @ self.alpha(penalty1, penalty2), len(self.first)
        others = [np.delete(np.arange(n), i) for i in range(n)]
        projected = [
            self.k_zz[i, rest]
            @ np.linalg.solve(self.k_zz[np.ix_(rest, rest)] + n * penalty1 * np.eye(n - 1), curve[rest])
            for i, rest in enumerate(others)
        ]
        return float(np.mean((self.y[self.first] - projected) ** 2))

    def predict(self, treatment: np.ndarray, covariates: np.ndarray, penalties: tuple[float, float]) -> np.ndarray:
        kernel = gaussian(self.inputs(treatment, covariates), self.points, self.x_scales)
        return self.data.outcome.mean() + self.data.outcome.std() * (kernel @ self.alpha(*penalties))


@pytest.fixture(scope="module")
def demand_data() -> IVData:
    return DemandDesign().sample(120, 0.5, 0)


@pytest.mark.parametrize("penalty", [1e-5, 1e-3])
def test_equals_the_dense_textbook_computation(
    demand_data: IVData, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kiv, "_PENALTIES", np.array([penalty]))
    config = KIVConfig()
    fitted, grid = config.fit(demand_data, SEED), DemandDesign().grid()
    covariates = np.column_stack([grid.covariates["time"], grid.covariates["group"]])
    expected = Textbook(demand_data, config).predict(grid.treatment, covariates, (penalty, penalty))
    error = np.abs(predict(fitted, grid.treatment, grid.covariates) - expected).max()
    assert error < 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("validation", ["original", "projected"])
def test_validation_losses_equal_the_textbooks(
    demand_data: IVData, validation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    penalties = np.logspace(-2, -6, 5)
    monkeypatch.setattr(kiv, "_PENALTIES", penalties)
    config = KIVConfig(validation=validation, standard_errors=0.0)
    fitted, textbook = config.fit(demand_data, SEED), Textbook(demand_data, config)
    np.testing.assert_allclose(fitted.losses[0], [textbook.stage1_loss(p) for p in penalties], rtol=1e-7)
    assert fitted.penalties[0] == pytest.approx(penalties[np.argmin(fitted.losses[0])])
    loss = textbook.original_loss if validation == "original" else textbook.projected_loss
    expected = [loss(fitted.penalties[0], p) for p in penalties]
    np.testing.assert_allclose(fitted.losses[1], expected, rtol=1e-6)
    assert fitted.penalties[1] == pytest.approx(penalties[np.argmin(expected)])


def test_standard_errors_choose_a_stronger_penalty() -> None:
    data = LowDimDesign("sin").sample(600, 1.0, 2)
    bare, careful = (KIVConfig(standard_errors=c).fit(data, SEED) for c in (0.0, 1.0))
    assert careful.penalties[1] >= bare.penalties[1]
    np.testing.assert_array_equal(careful.losses[1], bare.losses[1])


def test_undoes_strong_confounding() -> None:
    design = LowDimDesign("sin")
    data, grid = design.sample(1500, 1.0, 0), design.grid()
    errors = {}
    for use_instrument in (True, False):
        fitted = KIVConfig(use_instrument=use_instrument).fit(data, SEED)
        squares = (predict(fitted, grid.treatment, grid.covariates) - grid.truth) ** 2
        errors[use_instrument] = squares[grid.in_support].mean()
    assert errors[True] < 0.1
    assert errors[False] > 0.4


def test_without_the_instrument_it_is_kernel_ridge_regression(
    demand_data: IVData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kiv, "_PENALTIES", np.array([1e-3]))
    config = KIVConfig(use_instrument=False)
    fitted, book = config.fit(demand_data, SEED), Textbook(demand_data, config)
    # Ridge in the span of the first sample's kernel functions, fitted on the second sample.
    left = book.k_x12 @ book.k_x12.T + len(book.second) * 1e-3 * book.k_xx
    alpha = np.linalg.lstsq(left, book.k_x12 @ book.y[book.second], rcond=1e-15)[0]
    asked = demand_data.treatment[:50], demand_data.covariates[:50]
    expected = gaussian(book.inputs(*asked), book.points, book.x_scales) @ alpha
    expected = demand_data.outcome.mean() + demand_data.outcome.std() * expected
    np.testing.assert_allclose(predict(fitted, *asked), expected, rtol=1e-6)
    assert np.isnan(fitted.penalties[0])
    without = config.fit(demand_data.without_instruments(), SEED)
    np.testing.assert_array_equal(without.weights, fitted.weights)


def test_landmarks_approximate_the_exact_fit(demand_data: IVData, monkeypatch: pytest.MonkeyPatch) -> None:
    data, grid = DemandDesign().sample(400, 0.5, 0), DemandDesign().grid()
    exact, whole = KIVConfig().fit(data, SEED), KIVConfig().fit(demand_data, SEED)
    monkeypatch.setattr(kiv, "_LANDMARKS", 150)
    nystroem = KIVConfig().fit(data, SEED)
    assert len(nystroem.points) <= 150 < len(exact.points)
    a, b = (predict(fitted, grid.treatment, grid.covariates)[grid.in_support] for fitted in (exact, nystroem))
    assert np.sqrt(np.mean((a - b) ** 2)) < 0.2 * a.std()
    monkeypatch.setattr(kiv, "_LANDMARKS", 60)
    np.testing.assert_array_equal(whole.weights, KIVConfig().fit(demand_data, SEED).weights)


def test_vector_block_is_one_variable() -> None:
    data = VectorProxyDesign(vector_dim=20).sample(120, 0.5, 0)
    fitted = KIVConfig().fit(data, SEED)
    scales = fitted.kernel.lengthscales
    assert scales.shape == (22,)
    assert len(np.unique(scales[2:])) == 1
    assert len(np.unique(scales)) == 3
    assert len(np.unique(paper_preset().fit(data, SEED).kernel.lengthscales)) == 1


def test_paper_preset_is_in_raw_units(demand_data: IVData) -> None:
    fitted = paper_preset().fit(demand_data, SEED)
    first, _ = fitted.config._split(demand_data, SEED)
    raw = np.column_stack([demand_data.treatment, demand_data.covariates])[first]
    # exp(−d²/median d²): 2ℓ² is the median squared distance.
    squares = ((raw[:, None] - raw) ** 2).sum(axis=2)[np.triu_indices(len(raw), 1)]
    np.testing.assert_allclose(2.0 * fitted.kernel.lengthscales**2, np.median(np.sqrt(squares)) ** 2)
    assert {tuple(row) for row in fitted.points} <= {tuple(row) for row in raw}


def test_needs_two_rows_in_each_sample(demand_data: IVData) -> None:
    with pytest.raises(DataError, match="3 rows into samples of 2 and 1"):
        KIVConfig().fit(demand_data.take(slice(0, 3)), SEED)


@pytest.mark.parametrize(
    "wrong", [{"validation": "oracle"}, {"standard_errors": -1.0}, {"lengthscales": "each"}, {"width": 0.0}]
)
def test_bad_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        KIVConfig(**wrong)


def test_user_class() -> None:
    raw = RoleScaling(Identity(), Identity(), Identity(), Identity())
    model = KIV(preset="paper", validation="projected", scaling=raw)
    assert model._config() == replace(paper_preset(), validation="projected")
    with pytest.raises(ConfigError, match="preset"):
        KIV(preset="fast")._config()  # type: ignore[arg-type]


def test_median_of_a_mostly_constant_column_is_of_the_others() -> None:
    values = np.zeros((20, 2))
    values[0, 0] = 3.0
    np.testing.assert_array_equal(median_lengthscales(values, [slice(0, 1), slice(1, 2)]), [3.0, 1.0])


def test_wide_distances_agree_with_narrow_ones() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(5.0, 1.0, size=(30, 40)), rng.normal(5.0, 1.0, size=(20, 40))
    scales = rng.uniform(3.0, 9.0, size=40)
    np.testing.assert_allclose(GaussianKernel(scales)(a, b), gaussian(a, b, scales), rtol=1e-12)
    direct = np.sqrt(((a[:, None] - a) ** 2).sum(axis=2))[np.triu_indices(30, 1)]
    np.testing.assert_allclose(median_lengthscales(a, [slice(0, 40)]), np.median(direct), rtol=1e-12)


def test_features_of_repeated_rows() -> None:
    rows = np.repeat(np.linspace(0.0, 1.0, 6)[:, None], 4, axis=0)
    features, phi = fit_features(GaussianKernel(np.array([0.2])), rows, len(rows))
    assert phi.shape[1] == 6
    np.testing.assert_allclose(phi @ phi.T, GaussianKernel(np.array([0.2]))(rows, rows), atol=1e-11)
    np.testing.assert_allclose(features(rows), phi, atol=1e-8)


@pytest.mark.parametrize("values", [[0, 0, 0, 0, 1], [0, 1, 1, 0, 0, 0, 1], [2, 2, 2], [0, 1], [0, 1, 3, 3, 7] * 9])
def test_the_median_of_few_values_is_that_of_all_pairs(values: list[int]) -> None:
    column = np.array(values, float)
    distances = np.abs(column[:, None] - column)[np.triu_indices(len(column), 1)]
    median = np.median(distances) or (np.median(distances[distances > 0.0]) if distances.any() else 1.0)
    np.testing.assert_allclose(median_lengthscales(column[:, None], [slice(0, 1)]), median, rtol=1e-15)
