"""Questions to a fit: covariates are checked and encoded once, and memory does not grow with treatments times rows."""

from __future__ import annotations

import gc
import resource
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

from bgmiv.bgm import fitted as result_module
from bgmiv.bgm import latents as posterior
from bgmiv.bgm.config import BGMIVConfig, LatentPosterior
from bgmiv.bgm.estimator import BGMIV
from bgmiv.bgm.fitted import FittedNetworks
from bgmiv.bgm.latents import structural_means
from bgmiv.data import IVData, Schema
from bgmiv.data.query import Query, Rows, query_along, rows_of


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How often covariates are checked, and each member's latents inferred."""
    found: Counter[Any] = Counter()
    check, infer = Schema.check_covariates, result_module.latents_of

    def checked(self: Schema, *arguments: Any, **options: Any) -> Any:
        found["checks"] += 1
        return check(self, *arguments, **options)

    def inferred(model: Any, *arguments: Any) -> np.ndarray:
        found[id(model)] += 1
        return infer(model, *arguments)

    monkeypatch.setattr(Schema, "check_covariates", checked)
    monkeypatch.setattr(result_module, "latents_of", inferred)
    return found


@pytest.fixture
def model(fitted: FittedNetworks, proxy_data: IVData) -> BGMIV:
    """An estimator with the shared fit that nobody has asked yet."""
    model = BGMIV(random_state=4)
    model._keep(replace(fitted), 4, None, "", 0, {})
    model._attach(proxy_data)
    return model


QUESTIONS: dict[str, Callable[[BGMIV], Any]] = {
    "ate_interval": lambda m: m.ate_interval(t0=-0.5, t1=0.5),
    "dose_response": lambda m: m.dose_response(np.linspace(-1.0, 1.0, 5)),
    "report": lambda m: m.report(Path(mkdtemp()) / "report.html", no_instrument=False),
    "other rows": lambda m: m.effect_interval({"proxy": np.full((5, 24), 50.0)}, t0=-0.5, t1=0.5),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.filterwarnings("ignore::bgmiv.errors.SupportWarning")
def test_one_question_checks_and_encodes_once(model: BGMIV, counts: Counter[Any], question: str) -> None:
    QUESTIONS[question](model)
    assert counts.pop("checks", 0) <= 1
    assert sorted(counts.values()) == [1] * 3


def test_some_of_the_rows_are_not_encoded_again(
    fitted: FittedNetworks, proxy_data: IVData, counts: Counter[Any]
) -> None:
    rows = rows_of(fitted.schema, proxy_data)
    query = Query(np.array([[0.0], [1.0]]), rows)
    before = fitted.at(query)
    np.testing.assert_allclose(fitted.at(query.take(slice(3, 8))), before[:, 3:8], rtol=1e-6)
    sources = fitted.factors(query.take(slice(3, 8)))
    assert [(source.name, source.factors.shape) for source in sources] == [
        ("sampling", (64, 2, 5)),
        ("shrinkage", (66, 2, 5)),
        ("network", (3, 2, 5)),
    ]
    assert sorted(counts.values()) == [1, 1, 1]


def test_support_is_known_right_after_the_fit(fitted: FittedNetworks, proxy_data: IVData) -> None:
    rows = rows_of(fitted.schema, proxy_data)
    inside = fitted.in_support(Query(np.stack([proxy_data.treatment, proxy_data.treatment + 100.0]), rows))
    assert inside.shape == (2, 100)
    # Each of the two densities calls a hundredth of the rows outside.
    assert inside[0].mean() >= 0.95
    assert not inside[1].any()


def test_members_spread_is_their_variance(fitted: FittedNetworks, proxy_data: IVData) -> None:
    rows = rows_of(fitted.schema, proxy_data).take(slice(0, 4))
    query = Query(np.array([[0.0], [1.0], [2.0]]), rows)
    network = fitted.factors(query)[-1]
    np.testing.assert_allclose(np.sum(network.factors**2, axis=0), fitted.members_at(query).var(axis=0, ddof=1))


@pytest.mark.filterwarnings("ignore:the latent posterior's chains")
def test_draws_of_the_posterior_are_made_once_a_member(
    fitted: FittedNetworks, proxy_data: IVData, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = LatentPosterior(n_chains=2, n_warmup=20, n_draws=40)
    ruled = replace(fitted, config=replace(fitted.config, latents=rule), members=fitted.members[:2])
    calls = []
    real = posterior._run_chains
    few = rows_of(ruled.schema, {"proxy": proxy_data.covariates[:4]})
    query = Query(np.array([[0.0], [1.0], [2.0]]), few)
    monkeypatch.setattr(posterior, "_run_chains", lambda *a, **k: calls.append(1) or real(*a, **k))
    values = ruled.at(query)
    sources = ruled.factors(query)
    assert len(calls) == 2
    draws = [
        posterior.latent_draws(m.model, ruled.scaled_covariates(few.covariates), rule, np.zeros(1))
        for m in ruled.members
    ]
    x = ruled.scaler.treatment.transform(np.full(80, 1.0))
    by_hand = [structural_means(m.model, x, part[2]).mean() for m, part in zip(ruled.members, draws, strict=True)]
    assert values[1, 2] == pytest.approx(float(ruled.scaler.outcome.inverse(np.mean(by_hand))), rel=1e-5)
    assert [(source.name, source.factors.shape) for source in sources][-1] == ("latent", (64, 3, 4))


@pytest.mark.slow
def test_a_wide_dose_response_needs_little_memory(small: BGMIVConfig) -> None:
    """A thousand rows of 784 columns at 41 treatments: one copy a treatment would be 128 MB in single precision."""
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 1000))
    proxy = rng.normal(size=(1000, 784))
    data = IVData.from_arrays(w + u, w - u, instruments=w, covariates={"proxy": proxy})
    # What a question takes does not depend on the training.
    fitted = replace(small, initial=replace(small.initial, iterations=0)).fit(data, 0)
    query = query_along(fitted.schema, np.linspace(-1.0, 1.0, 41), data)
    fitted.at(query)
    gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    values = fitted.at(Query(query.treatment, Rows(data.covariates)))
    inside = fitted.in_support(query.drawn(250))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert values.shape == (41, 1000)
    assert inside.shape == (41, 250)
    assert most < 60e6
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024 < 60e6
