"""Levels are names: how methods are asked for them, and that renaming them renames the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bgmiv import TSLS
from bgmiv.errors import DataError
from bgmiv.estimators.base import IVEstimator

Tiny = Callable[..., IVEstimator]

N = 60
rng = np.random.default_rng(3)
W = rng.normal(size=(N, 2))
V, U = rng.normal(size=(2, N))
DOSE = np.array(["none", "low", "high"])[np.argmax(np.column_stack([0 * U, W[:, 0] + U, W[:, 1] + U - 0.3]), axis=1)]
REGION = rng.choice(["n", "s", "w"], size=N)
Y = (DOSE == "low") + 2.0 * (DOSE == "high") + V + (REGION == "s") + U
GRADE = np.array(["c", "b", "a"])[np.digitize(Y, [0.0, 2.0])]
QUERY = {"age": V[:6], "region": np.array(["n", "s", "w"] * 2)}
# Names in another order of the alphabet.
DOSES = {"none": "a", "low": "z", "high": "k"}
REGIONS = {"n": "z", "s": "b", "w": "a"}
GRADES = {"a": "z", "b": "q", "c": "p"}


def renamed(values: np.ndarray, names: dict[str, str]) -> np.ndarray:
    return np.array([names[value] for value in values.tolist()])


def fit(model: IVEstimator, outcome: Any, dose: Any, region: Any) -> IVEstimator:
    covariates = {"age": V, "region": region}
    return model.fit(outcome, dose, instruments=W, covariates=covariates, blocks={"region": "categorical"})


def test_other_names_change_nothing_else(method: str, tiny: Tiny) -> None:
    model = fit(tiny(method), Y, DOSE, REGION)
    other = fit(tiny(method), Y, renamed(DOSE, DOSES), renamed(REGION, REGIONS))
    query = {"age": QUERY["age"], "region": renamed(QUERY["region"], REGIONS)}
    answers = []
    for level, new in DOSES.items():
        answers.append(model.predict(level, QUERY))
        np.testing.assert_allclose(answers[-1], other.predict(new, query), rtol=1e-6, atol=1e-9)
    assert not np.allclose(answers[0], answers[1])
    with pytest.raises(DataError, match=r"treatment.*'huge'.*known levels: .*'low'"):
        model.predict("huge", QUERY)
    with pytest.raises(DataError, match=r"'region'.*'e'.*known levels: .*'w'"):
        model.predict("low", {"age": V[:1], "region": ["e"]})


def test_other_names_of_an_outcome_change_nothing_else(tiny: Tiny) -> None:
    model, other = (fit(tiny("bgm-iv"), grade, DOSE, REGION) for grade in (GRADE, renamed(GRADE, GRADES)))
    levels = model.fitted_.schema.outcome.levels
    assert tuple(GRADES[level] for level in levels) == other.fitted_.schema.outcome.levels
    got = model.predict("low", QUERY)
    np.testing.assert_allclose(got.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(got, other.predict("low", QUERY), rtol=1e-6)


def test_the_other_way_to_a_prediction_takes_levels(tiny: Tiny) -> None:
    model = fit(tiny("bgm-iv", iterations=0, latents="map", epochs=1), GRADE, DOSE, REGION)
    got = model.predict(["low", "high"], {"age": V[:2], "region": ["n", "w"]})
    assert got.shape == (2, 3)
    assert ((got > 0.0) & (got < 1.0)).all()


def test_least_squares_names_its_indicators_and_its_way_out() -> None:
    model = TSLS().fit(Y, DOSE, instruments=W, covariates=V)
    result = model.fitted_.result
    reference, *others = model.fitted_.schema.treatment.levels
    assert [name for name in result.params.index if "=" in name] == [f"treatment={level}" for level in others]
    gains = [float(model.predict(level, [[0.0]])[0] - model.predict(reference, [[0.0]])[0]) for level in others]
    np.testing.assert_allclose(gains, [result.params[f"treatment={level}"] for level in others])
    with pytest.raises(DataError, match=r"3 levels.*instruments.*another method"):
        TSLS().fit(Y, DOSE, instruments=W[:, 0], covariates=V)
