"""The noise that a wide block bears, against plain ridge regressions."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.preprocess.reduction import choose_noise

LEVELS = (0.1, 0.3, 1.0, 3.0)


def by_hand(columns: np.ndarray, targets: np.ndarray) -> float:
    """Generalised cross-validation from the whole hat matrix of each ridge regression."""
    z, t = ((a - a.mean(0)) / np.where(a.std(0) > 0, a.std(0), 1.0) for a in (columns, targets))
    n, d = z.shape
    scores = []
    for level in LEVELS:
        hat = z @ np.linalg.solve(z.T @ z + n * level**2 * np.eye(d), z.T)
        residual = np.sum(np.mean((t - hat @ t) ** 2, axis=0))
        scores.append(residual / max(1.0 - (np.trace(hat) + 1.0) / n, 1e-3) ** 2)
    return LEVELS[int(np.argmin(scores))]


@pytest.mark.parametrize("shape", [(200, 40), (50, 80), (60, 60)])
@pytest.mark.parametrize("signal", [0.0, 0.2, 2.0])
def test_it_is_the_level_of_lowest_generalised_cross_validation(shape: tuple[int, int], signal: float) -> None:
    rng = np.random.default_rng(0)
    columns = rng.normal(size=shape)
    columns[:, 3] = 5.0
    targets = signal * columns @ rng.normal(size=(shape[1], 2)) + rng.normal(size=(shape[0], 2))
    assert choose_noise(columns, targets, LEVELS) == by_hand(columns, targets)


def test_columns_that_never_vary_bear_anything() -> None:
    assert choose_noise(np.ones((20, 3)), np.arange(20.0)[:, None], LEVELS) in LEVELS


def test_the_noise_is_chosen_by_rows_from_the_whole_file() -> None:
    """Columns that say nothing in the first half of a sorted file, and all in the second."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(12_000, 20))
    said = columns[:, 0] * (np.arange(12_000) >= 6000) + 0.1 * rng.normal(size=12_000)
    levels = (0.0, 0.5, 1.0)
    assert choose_noise(columns[:4000], said[:4000, None], levels) == 1.0
    assert choose_noise(columns, said[:, None], levels) == 0.0
