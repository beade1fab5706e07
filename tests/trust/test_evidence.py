"""What is gathered from members and the rows they left out, against sums written by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from bgmiv.data import IVData
from bgmiv.train.looks import RowsLook
from bgmiv.trust.evidence import gather_evidence
from bgmiv.trust.held_out import moment_shares, simple_fits
from bgmiv.trust.verdict import FitEvidence, judge

N, MEMBERS, SIZE = 240, 3, 40
AWAY = [
    RowsLook(0.30, 1.1, -1.0, 0.6, 0.0, 0.9),
    RowsLook(0.20, 0.9, -1.2, 0.3, 0.1, 0.8),
    RowsLook(0.40, 1.0, -1.4, 0.6, 0.2, 1.0),
]
HOME = [
    RowsLook(0.20, 1.0, -0.9, 0.6, 0.0, 0.9),
    RowsLook(0.25, 1.0, -1.0, 0.4, 0.0, 0.9),
    RowsLook(0.15, 1.0, -1.1, 0.8, 0.0, 0.9),
]


@pytest.fixture(scope="module")
def data() -> IVData:
    w, v, u = np.random.default_rng(0).normal(size=(3, N))
    x = w + v + u
    return IVData.from_arrays(10.0 * (2.0 * x + v - u), x, instruments=w, covariates=v)


@pytest.fixture(scope="module")
def held_out() -> list[np.ndarray]:
    order = np.random.default_rng(1).permutation(N)
    return [order[i * 80 : i * 80 + SIZE] for i in range(MEMBERS)]


def predict(data: IVData) -> np.ndarray:
    """Three members that differ by constants."""
    g = 10.0 * (2.0 * data.treatment.astype(float) + data.covariates[:, 0])
    return np.stack([g - 1.0, g, g + 4.0])


def gather(data: IVData, held_out: list[np.ndarray], **changes: Any) -> FitEvidence:
    arguments: dict[str, Any] = {"looks": list(zip(AWAY, HOME, strict=True)), "predict": predict, **changes}
    return gather_evidence(data, held_out, **arguments)


def test_every_number_by_hand(data: IVData, held_out: list[np.ndarray]) -> None:
    got = gather(data, held_out, n_steps=900)
    rows = np.concatenate(held_out)
    y, spread = data.outcome.astype(float), float(np.std(data.outcome.astype(float)))
    rest = np.setdiff1d(np.arange(N), rows)
    simple = simple_fits(data, rest, rows)
    # Each row is predicted by the member that left it out.
    own = predict(data.take(rows))[np.repeat([0, 1, 2], SIZE), np.arange(3 * SIZE)]
    risks = moment_shares(data, rows, own, simple)
    linear, flexible, *alone = (
        1.0 - float(np.mean((y[rows] - values) ** 2)) / float(np.var(y[rows]))
        for values in (simple.outcome, simple.flexible, simple.linear_instruments, simple.flexible_instruments)
    )
    expected = FitEvidence(
        n_held_out=3 * SIZE,
        outcome_explained=1.0 - 0.3 / 1.0,
        linear_explained=linear,
        flexible_explained=flexible,
        covariates_gain=max(linear, flexible) - max(alone),
        moment_risk=risks.fit,
        linear_moment_risk=risks.linear,
        treatment_moment_risk=risks.treatment_only,
        outcome_gap=0.3 / 0.2,
        treatment_gap=-1.0 - -1.2,
        first_stage_gain=0.5,
        disagreement=float(np.std([-1.0, 0.0, 4.0])) / spread,
        near_floor=0.1,
        latent_spread=0.9,
        n_steps=900,
        n_members=3,
        n_failed=0,
    )
    for name, value in asdict(expected).items():
        assert getattr(got, name) == pytest.approx(value, rel=1e-6, abs=1e-9), name
        assert isinstance(getattr(got, name), int if name.startswith(("n_", "discrete")) else float), name


def test_held_out_rows_alone_are_predicted_and_each_by_the_member_that_left_it_out(
    data: IVData, held_out: list[np.ndarray]
) -> None:
    asked: list[IVData] = []

    def spy(part: IVData) -> np.ndarray:
        asked.append(part)
        return predict(part)

    right = gather(data, held_out, predict=spy)
    (part,) = asked
    np.testing.assert_array_equal(part.outcome, data.outcome[np.concatenate(held_out)])
    # With the members turned around, the same rows belong to others and have another risk.
    turned = gather(data, held_out, predict=lambda part: predict(part)[::-1])
    assert turned.moment_risk != right.moment_risk
    assert turned.disagreement == pytest.approx(right.disagreement)


def test_without_held_out_rows_only_the_count_of_members_is_known(data: IVData) -> None:
    def never(part: IVData) -> np.ndarray:
        raise AssertionError("nothing is to be predicted")

    empty = [np.zeros(0, np.int64)] * 4
    got = gather(data, empty, looks=[], predict=never, n_failed=1)
    assert got == FitEvidence(n_members=4, n_failed=1)
    assert judge(got).level == "doubtful"


def test_a_fit_without_instruments_is_not_asked_about_them(data: IVData, held_out: list[np.ndarray]) -> None:
    got = gather(data.without_instruments(), held_out, uses_instrument=False)
    against = ("linear_explained", "flexible_explained", "linear_moment_risk", "treatment_moment_risk")
    for name in ("first_stage_gain", "moment_risk", *against):
        assert getattr(got, name) is None
    assert got.outcome_gap == pytest.approx(1.5)
    assert got.disagreement is not None


def test_one_member_cannot_disagree(data: IVData, held_out: list[np.ndarray]) -> None:
    one = gather(data, held_out[:1], looks=[(AWAY[0], HOME[0])], predict=lambda part: predict(part)[1:2])
    assert one.disagreement is None
    assert (one.n_members, one.n_held_out) == (1, SIZE)


def test_rows_all_left_out_by_someone_leave_none_for_the_simple_fits(data: IVData) -> None:
    everything = [np.arange(N)[i::3] for i in range(3)]
    got = gather(data, everything)
    assert (got.linear_explained, got.flexible_explained, got.moment_risk) == (None, None, None)
    assert got.n_held_out == N


def test_failed_members_are_counted(data: IVData, held_out: list[np.ndarray]) -> None:
    assert gather(data, held_out, n_failed=2).n_failed == 2


def test_the_same_evidence_again(data: IVData, held_out: list[np.ndarray]) -> None:
    assert gather(data, held_out) == gather(data, held_out)


def test_many_held_out_rows_are_cut_evenly() -> None:
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 6000))
    data = IVData.from_arrays(w + u, w - u, instruments=w)
    parts = [np.arange(i * 2000, i * 2000 + 900) for i in range(3)]
    got = gather(data, parts, predict=lambda part: np.zeros((3, part.n_rows)))
    assert got.n_held_out == 1500
    assert got == gather(data, [part[:500] for part in parts], predict=lambda part: np.zeros((3, part.n_rows)))


def test_predictions_that_are_no_numbers_fail_the_fit(data: IVData, held_out: list[np.ndarray]) -> None:
    verdict = judge(gather(data, held_out, predict=lambda part: predict(part) + np.nan))
    assert verdict.level == "failed"
    assert np.isnan(verdict.evidence.moment_risk or 0.0)
    assert np.isnan(verdict.evidence.disagreement or 0.0)


def test_levels_count_by_their_indicators(data: IVData, held_out: list[np.ndarray]) -> None:
    grades = np.array(["c", "b", "a"])[np.digitize(data.outcome, [-5.0, 15.0])]
    levelled = IVData.from_arrays(grades, data.treatment, instruments=data.instruments, covariates=data.covariates)
    parts = levelled.outcome_parts()

    def shares(rows: IVData) -> np.ndarray:
        flat = np.full((rows.n_rows, 3), 1.0 / 3.0)
        return np.stack([flat, flat + [0.1, -0.1, 0.0], flat])

    got = gather(levelled, held_out, predict=shares)
    rows = np.concatenate(held_out)
    train = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(N), rows))
    fits = [simple_fits(part, train, rows) for part in parts]
    errors = sum(float(np.mean((part.outcome[rows] - fit.outcome) ** 2)) for part, fit in zip(parts, fits, strict=True))
    assert got.linear_explained == pytest.approx(1.0 - errors / sum(part.outcome[rows].var() for part in parts))
    total = sum(part.outcome.var() for part in parts)
    own = shares(levelled.take(rows))[np.repeat(np.arange(MEMBERS), SIZE), np.arange(len(rows))]
    risks = [moment_shares(part, rows, own[:, k], fits[k]) for k, part in enumerate(parts)]
    by_hand = sum(risk.fit * part.outcome.var() for risk, part in zip(risks, parts, strict=True)) / total
    assert got.moment_risk == pytest.approx(by_hand)
    between = 2.0 * np.var([0.0, 0.1, 0.0])
    assert got.disagreement == pytest.approx(np.sqrt(between / total))
