"""Clusters of rows are never divided: no row that a method holds out has a cluster mate among those it learns from."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from bgmiv import BGMIV, DFIV, KIV, NPIV, DeepGMM, DeepIV
from bgmiv.baselines.dfiv import stages_of
from bgmiv.baselines.kiv import KIVConfig, _FirstStage
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import RoleScaling
from bgmiv.diagnostics.held_out import cross_fitted

N_CLUSTERS, SIZE = 60, 15
GROUPS = np.repeat(np.arange(N_CLUSTERS), SIZE)


def clustered(seed: int) -> dict[str, np.ndarray]:
    """Covariates and a large part of the error are those of the cluster; g is x + v/2."""
    rng = np.random.default_rng(seed)
    v, effect = rng.normal(size=(N_CLUSTERS, 3))[GROUPS], rng.normal(size=N_CLUSTERS)[GROUPS]
    w, u, e = rng.normal(size=(3, len(GROUPS)))
    x = w + 0.5 * v[:, 0] + u + 0.5 * effect
    y = x + 0.5 * v[:, 0] + 2.0 * effect - u + e
    return {"outcome": y, "treatment": x, "instruments": w, "covariates": v, "clusters": GROUPS}


def assert_apart(held_out: np.ndarray, learnt_from: np.ndarray | None = None) -> None:
    rest = np.delete(GROUPS, held_out) if learnt_from is None else GROUPS[learnt_from]
    assert len(held_out)
    assert not np.isin(GROUPS[held_out], rest).any()


TINY: list[tuple[Any, dict[str, Any]]] = [
    (DeepIV, {"epochs": 1, "batch_size": 64, "hidden": (4,), "n_components": 2, "members": 3}),
    (DFIV, {"epochs": 1, "members": 3}),
    (DeepGMM, {"updates": 2, "batch_size": 16, "hidden": (4,), "members": 3}),
]


@pytest.mark.parametrize(("method", "settings"), TINY)
def test_members_of_other_methods(method: Any, settings: dict[str, Any]) -> None:
    fitted = method(random_state=0, **settings).fit(**clustered(0)).fitted_
    assert len(fitted.held_out_rows) == 3
    for rows in fitted.held_out_rows:
        assert_apart(rows)


def test_samples_of_two_stages() -> None:
    data = IVData.from_arrays(**clustered(0))
    first, second = KIVConfig()._split(data, 0)
    assert_apart(first, second)
    assert len(first) == pytest.approx(450, abs=SIZE)
    rows = RoleScaling().fit(data).transform(data)
    stages = stages_of(rows, jax.random.key(0), halves=True, groups=data.groups)
    in_first, in_second = (np.asarray(part.present) > 0 for part in (stages.first, stages.second))
    # Every row has an instrument of its own.
    parts = np.asarray(stages.first.columns)[in_first], np.asarray(stages.second.columns)[in_second]
    places = [np.flatnonzero(np.isin(rows.w, part)) for part in parts]
    assert_apart(*places)
    assert sum(map(len, places)) == len(GROUPS)


def test_kernel_predictions_leave_out_the_cluster() -> None:
    """By the closed form and by fits without each cluster."""
    rng = np.random.default_rng(0)
    z, values = rng.normal(size=(45, 4)), rng.normal(size=(45, 2))
    ridge, groups = 0.7, GROUPS[:45]
    eigenvalues, basis = np.linalg.eigh(z.T @ z)
    stage = _FirstStage(z[:0], z @ basis, 1.0 / (eigenvalues + ridge), ridge, z[0])
    got = stage.leave_out(values, groups)
    for group in np.unique(groups):
        own, rest = groups == group, groups != group
        beta = np.linalg.solve(z[rest].T @ z[rest] + ridge * np.eye(4), z[rest].T @ values[rest])
        np.testing.assert_allclose(got[own], z[own] @ beta, rtol=1e-6)
    assert np.isfinite(KIV(random_state=0).fit(**clustered(0)).predict(0.0, np.zeros((1, 3)))).all()


def test_fits_that_hold_rows_out_afterwards() -> None:
    data = IVData.from_arrays(**clustered(0))
    parts: list[IVData] = []

    def refit(part: IVData) -> Any:
        parts.append(part)
        return lambda query: np.zeros(query.shape)

    found = cross_fitted(data, refit, 1500)
    assert found is not None
    np.testing.assert_array_equal(found.rows, np.arange(data.n_rows))
    assert len(parts) == 5
    for part in parts:
        # Four fifths of the clusters, each whole.
        counts = np.bincount(GROUPS[np.isin(data.treatment, part.treatment)], minlength=N_CLUSTERS)
        assert sorted(counts) == [0] * 12 + [SIZE] * 48


@pytest.mark.slow
def test_networks_do_not_memorise_clusters() -> None:
    """With rows of a cluster on both sides they were chosen, at an error above var(g) and the verdict good."""
    rows = clustered(5000)
    g = rows["treatment"] + 0.5 * rows["covariates"][:, 0]
    for method in (NPIV(), BGMIV(networks=True, random_state=0)):
        model = method.fit(**rows)
        error = model.predict(rows["treatment"], rows["covariates"]) - g
        assert np.var(error) < 0.2 * np.var(g)
    for member in model.fitted_.members:
        assert_apart(member.held_out_rows)
    assert model.fitted_.last_stage.weight == 0.0
