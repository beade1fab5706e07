"""Losses on held-out rows against the same numbers worked out row by row, and the evidence made of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from bgmiv.bgm.config import CovariateConfig, LatentLayout, ModelConfig
from bgmiv.bgm.members import gather_evidence
from bgmiv.bgm.model import BGMIVModel, HeldOutLosses, build_model, evaluate_fold
from bgmiv.data import IVData, RoleScaling
from bgmiv.diagnostics.held_out import held_out_rows
from bgmiv.diagnostics.moments import cross_fits, moment_shares
from bgmiv.diagnostics.verdict import judge
from bgmiv.fitted import FitEvidence
from bgmiv.integrate import GaussHermite
from bgmiv.training import TrainingData, training_data

RULE = GaussHermite(3)
# In the middle, up to the last real row (padding follows), and of a single row.
FOLDS = [(6, 8), (13, 7), (9, 1)]


def with_fold(data: TrainingData, start: int, size: int) -> TrainingData:
    return data._replace(fold_start=jnp.asarray(start, jnp.int32), fold_size=jnp.asarray(size, jnp.int32))


def evaluate(model: BGMIVModel, data: TrainingData) -> HeldOutLosses:
    return HeldOutLosses(*map(float, evaluate_fold(model, RULE, data)))


@jax.jit
def _row(model: BGMIVModel, v: Any, w: Any) -> Any:
    """The latents of a row, and the treatment's raw parameters under each of some instruments."""
    z = model.covariates.encode(v)
    return z, jax.vmap(model.treatment_raw, (0, None))(w, z)


@jax.jit
def _means(model: BGMIVModel, nodes: Any, z: Any) -> Any:
    return jnp.stack([model.structural_mean(x, z) for x in nodes])


def by_hand(model: BGMIVModel, data: TrainingData, start: int, size: int) -> HeldOutLosses:
    rows = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[start : start + size], data.rows)
    points, weights = np.polynomial.hermite_e.hermegauss(3)
    weights /= weights.sum()
    losses, scores, gains, floors, latents = [], [], [], [], []
    for i in range(size):
        # Sixteen turns of the fold, spread evenly over it.
        others = [(i + (turn * size) // 17) % size for turn in range(1, 17)]
        z, raws = (np.asarray(part, np.float64) for part in _row(model, rows.v[i], rows.w[[i, *others]]))
        deviations = np.sqrt(np.log1p(np.exp(raws[:, 1])) + 1e-6)
        densities = norm.pdf(rows.x[i], raws[:, 0], deviations)
        nodes = raws[0, 0] + deviations[0] * points
        mean = weights @ np.asarray(_means(model, nodes.astype(np.float32), z.astype(np.float32)))
        losses.append((rows.y[i] - mean) ** 2)
        scores.append(np.log(densities[0]))
        gains.append(np.log(densities[0]) - np.log(densities[1:].mean()))
        floors.append(deviations[0] ** 2 < 1e-4)
        latents.append(z)
    return HeldOutLosses(
        outcome_loss=np.mean(losses),
        outcome_variance=np.var(rows.y),
        treatment_score=np.mean(scores),
        first_stage_gain=np.mean(gains),
        near_floor=np.mean(floors),
        latent_spread=np.mean(np.std(latents, axis=0)),
    )


@pytest.mark.parametrize("fold", FOLDS)
def test_every_number_by_hand(tiny: Any, fold: tuple[int, int]) -> None:
    got = evaluate(tiny.model, with_fold(tiny.data, *fold))
    expected = by_hand(tiny.model, tiny.data, *fold)
    for name, one, two in zip(HeldOutLosses._fields, got, expected, strict=True):
        assert one == pytest.approx(two, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("fold", FOLDS)
def test_rows_outside_the_fold_and_padding_do_not_matter(tiny: Any, fold: tuple[int, int]) -> None:
    start, size = fold
    rng = np.random.default_rng(0)
    outside = ~((np.arange(24) >= start) & (np.arange(24) < start + size))

    def garbage(leaf: Any) -> Any:
        noise = 1e3 * rng.normal(size=leaf.shape)
        return jnp.where(outside.reshape(-1, *[1] * (leaf.ndim - 1)), noise.astype(np.float32), leaf)

    dirty = tiny.data._replace(rows=jax.tree.map(garbage, tiny.data.rows))
    assert evaluate(tiny.model, with_fold(dirty, *fold)) == evaluate(tiny.model, with_fold(tiny.data, *fold))


@pytest.mark.parametrize(("bias", "share"), [(-20.0, 1.0), (-9.3, 1.0), (-9.1, 0.0), (0.0, 0.0)])
def test_variances_that_only_their_floor_keeps_up(tiny: Any, bias: float, share: float) -> None:
    """softplus(-9.2) is 1e-4, a hundred times the floor."""
    head = tiny.model.treatment.outputs[0]
    flat = eqx.tree_at(
        lambda m: (m.treatment.outputs[0].kernel, m.treatment.outputs[0].bias),
        tiny.model,
        (head.kernel.at[:, 1].set(0.0), head.bias.at[1].set(bias)),
    )
    assert evaluate(flat, with_fold(tiny.data, 6, 8)).near_floor == pytest.approx(share)


def test_a_binary_treatment_has_no_floor_to_stand_on() -> None:
    rng = np.random.default_rng(0)
    w, v, u = rng.normal(size=(3, 20))
    data = IVData.from_arrays(v + u, w + u > 0.0, instruments=w, covariates=v)
    config = ModelConfig(LatentLayout(1, 1, 1, 1), (8,), (8,), CovariateConfig(dense_hidden=(8,)))
    model = build_model(data.schema, 1, config, key=jax.random.key(0))
    seen = evaluate(model, training_data(RoleScaling().fit(data).transform(data), 8, (6, 8)))
    assert seen.near_floor == 0.0
    assert np.isfinite(seen).all()
    assert seen.treatment_score < 0.0


def test_of_a_large_fold_a_part_is_evaluated(tiny: Any) -> None:
    """2100 rows in the fold: the first 2048 are enough, and alone decide whose instruments are exchanged."""
    rng = np.random.default_rng(0)

    def many(leaf: Any) -> np.ndarray:
        return np.asarray(leaf)[rng.integers(0, 20, size=2200)]

    rows = jax.tree.map(many, tiny.data.rows)
    data = TrainingData(rows, *(jnp.asarray(number, jnp.int32) for number in (2200, 50, 2100)))
    seen = evaluate(tiny.model, data)
    cut = evaluate(tiny.model, with_fold(data, 50, 2048))
    assert seen == pytest.approx(cut, rel=1e-6)
    beyond = rows._replace(y=np.where(np.arange(2200) >= 50 + 2048, np.float32(1e3), rows.y))
    assert evaluate(tiny.model, data._replace(rows=beyond)) == seen


N, MEMBERS, SIZE = 240, 3, 40
AWAY = [
    HeldOutLosses(0.30, 1.1, -1.0, 0.6, 0.0, 0.9),
    HeldOutLosses(0.20, 0.9, -1.2, 0.3, 0.1, 0.8),
    HeldOutLosses(0.40, 1.0, -1.4, 0.6, 0.2, 1.0),
]
HOME = [
    HeldOutLosses(0.20, 1.0, -0.9, 0.6, 0.0, 0.9),
    HeldOutLosses(0.25, 1.0, -1.0, 0.4, 0.0, 0.9),
    HeldOutLosses(0.15, 1.0, -1.1, 0.8, 0.0, 0.9),
]


@pytest.fixture(scope="module")
def sample() -> IVData:
    w, v, u = np.random.default_rng(0).normal(size=(3, N))
    x = w + v + u
    return IVData.from_arrays(10.0 * (2.0 * x + v - u), x, instruments=w, covariates=v)


ROWS, OWNER = held_out_rows([np.random.default_rng(1).permutation(N)[i * 80 :][:SIZE] for i in range(MEMBERS)], 1500)


def members_of(data: IVData) -> np.ndarray:
    """Three members that differ by constants, at the held-out rows."""
    part = data.take(ROWS)
    g = 10.0 * (2.0 * part.treatment.astype(float) + part.covariates[:, 0])
    return np.stack([g - 1.0, g, g + 4.0])


def gather(data: IVData, members: np.ndarray | None = None, **options: Any) -> FitEvidence:
    found = members_of(data) if members is None else members
    asked = {"uses_instrument": True, "networks_alone": True} | options
    return gather_evidence(data, ROWS, OWNER, found, list(zip(AWAY, HOME, strict=True)), **asked)


def assert_same(got: FitEvidence, expected: FitEvidence, rel: float) -> None:
    for name, value in asdict(expected).items():
        same = None if value is None else pytest.approx(value, rel=rel, abs=1e-9)
        assert getattr(got, name) == same, name


def test_evidence_by_hand(sample: IVData) -> None:
    got = gather(sample)
    y, spread = sample.outcome.astype(float), float(np.std(sample.outcome.astype(float)))
    simple = cross_fits(sample, ROWS)
    # Each row is predicted by the member that held it out.
    own = members_of(sample)[np.repeat([0, 1, 2], SIZE), np.arange(3 * SIZE)]
    risks = moment_shares(sample, ROWS, own, simple)
    linear, flexible, *alone = (
        1.0 - float(np.mean((y[ROWS] - values) ** 2)) / float(np.var(y[ROWS]))
        for values in (simple.outcome, simple.flexible, simple.linear_instruments, simple.flexible_instruments)
    )
    expected = FitEvidence(
        n_held_out=3 * SIZE,
        outcome_explained=1.0 - 0.3 / 1.0,
        linear_explained=linear,
        flexible_explained=flexible,
        covariates_gain=max(linear, flexible) - max(alone),
        moment_risk=risks.moment_risk,
        linear_moment_risk=risks.linear_moment_risk,
        treatment_moment_risk=risks.treatment_moment_risk,
        outcome_gap=0.3 / 0.2,
        treatment_gap=-1.0 - -1.2,
        first_stage_gain=0.5,
        disagreement=float(np.std([-1.0, 0.0, 4.0])) / spread,
        near_floor=0.1,
        latent_spread=0.9,
        n_members=3,
    )
    assert_same(got, expected, rel=1e-6)


def test_a_weight_of_two_is_a_held_out_row_twice(sample: IVData) -> None:
    counts = np.ones(N, int)
    counts[ROWS[::3]] = 2
    weighted = gather(replace(sample, weights=counts / counts.mean()), members_of(sample) * [[1.0], [1.1], [0.9]])
    places = np.repeat(np.arange(len(ROWS)), counts[ROWS])
    rest = np.setdiff1d(np.arange(N), ROWS)
    again = sample.take(np.concatenate([ROWS[places], rest]))
    members = (members_of(sample) * [[1.0], [1.1], [0.9]])[:, places]
    rows, losses = np.arange(len(places)), list(zip(AWAY, HOME, strict=True))
    repeated = gather_evidence(again, rows, OWNER[places], members, losses, uses_instrument=True, networks_alone=True)
    assert weighted.disagreement == pytest.approx(repeated.disagreement, rel=1e-6)
    assert weighted.disagreement != pytest.approx(gather(sample).disagreement, rel=1e-3)
    # Folds of repeated rows are others, so that of the simple fits it is the average over rows that can be compared.
    own, y = counts[ROWS], sample.outcome[ROWS].astype(float)
    values = cross_fits(replace(sample, weights=counts / counts.mean()), ROWS).outcome
    left = np.average((y - values) ** 2, weights=own) / np.average((y - np.average(y, weights=own)) ** 2, weights=own)
    assert weighted.linear_explained == pytest.approx(1.0 - left, rel=1e-6)
    # Weights that are all the same change nothing.
    even = gather(replace(sample, weights=np.full(N, 3.0)))
    assert_same(even, gather(sample), rel=1e-9)


def test_a_fit_without_instruments_is_not_asked_about_them(sample: IVData) -> None:
    got = gather(sample.without_instruments(), uses_instrument=False)
    for name in ("first_stage_gain", "moment_risk", "linear_explained", "flexible_explained", "linear_moment_risk"):
        assert getattr(got, name) is None
    assert got.outcome_gap == pytest.approx(1.5)


def test_rows_all_held_out_are_compared_fold_by_fold(sample: IVData) -> None:
    rows, owner = held_out_rows([np.arange(N)[i::3] for i in range(3)], 1500)
    losses = list(zip(AWAY, HOME, strict=True))
    got = gather_evidence(sample, rows, owner, np.zeros((3, N)), losses, uses_instrument=True, networks_alone=True)
    assert got.n_held_out == N
    assert got.linear_explained is not None
    assert got.linear_explained > 0.3
    assert got.moment_risk is not None
    assert got.linear_moment_risk is not None
    # g is 0.
    assert got.moment_risk > got.linear_moment_risk + 0.02


def test_many_held_out_rows_are_cut_evenly() -> None:
    rows, owner = held_out_rows([np.arange(i * 2000, i * 2000 + 900) for i in range(3)], 1500)
    np.testing.assert_array_equal(np.bincount(owner), [500, 500, 500])
    np.testing.assert_array_equal(rows[500:1000], np.arange(2000, 2500))


def test_predictions_that_are_no_numbers_fail_the_fit(sample: IVData) -> None:
    verdict = judge(gather(sample, members_of(sample) + np.nan))
    assert verdict.severity == "failed"
    assert np.isnan(verdict.evidence.moment_risk or 0.0)


def test_levels_count_by_their_indicators(sample: IVData) -> None:
    grades = np.array(["c", "b", "a"])[np.digitize(sample.outcome, [-5.0, 15.0])]
    data = IVData.from_arrays(grades, sample.treatment, instruments=sample.instruments, covariates=sample.covariates)
    flat = np.full((len(ROWS), 3), 1.0 / 3.0)
    members = np.stack([flat, flat + [0.1, -0.1, 0.0], flat])
    got, parts = gather(data, members), data.outcome_parts()
    fits = [cross_fits(part, ROWS) for part in parts]
    errors = sum(float(np.mean((part.outcome[ROWS] - fit.outcome) ** 2)) for part, fit in zip(parts, fits, strict=True))
    assert got.linear_explained == pytest.approx(1.0 - errors / sum(part.outcome[ROWS].var() for part in parts))
    total = sum(part.outcome.var() for part in parts)
    own = members[OWNER, np.arange(len(ROWS))]
    risks = [moment_shares(part, ROWS, own[:, k], fits[k]) for k, part in enumerate(parts)]
    by_hand = sum(risk.moment_risk * part.outcome.var() for risk, part in zip(risks, parts, strict=True)) / total
    assert got.moment_risk == pytest.approx(by_hand)
    assert got.disagreement == pytest.approx(np.sqrt(2.0 * np.var([0.0, 0.1, 0.0]) / total))
