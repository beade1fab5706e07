"""What BGM-IV is for, one small fit a claim."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv import NPIV, TSLS
from bgmiv.bgm.config import (
    EGM,
    Alternating,
    BGMIVConfig,
    CovariateConfig,
    JointTraining,
    LatentLayout,
    LatentMap,
    ModelConfig,
)
from bgmiv.data import IVData
from bgmiv.designs import DemandDesign
from bgmiv.effects import predict
from bgmiv.integrate import GaussHermite, QuasiMonteCarlo


def _confounded(seed: int) -> IVData:
    """y = x + v + e with x = w + v + u and corr(u, e) = 0.9: a regression finds a slope near 1.45."""
    rng = np.random.default_rng(seed)
    w, v, u, noise = rng.normal(size=(4, 400))
    x = w + v + u
    return IVData.from_arrays(x + v + 0.9 * u + np.sqrt(1.0 - 0.81) * noise, x, instruments=w, covariates=v)


def test_the_instrument_takes_confounding_away() -> None:
    hidden = (16,)
    config = BGMIVConfig(
        layout=LatentLayout(1, 1, 1, 1),
        batch_size=64,
        model=ModelConfig(
            treatment_hidden=hidden, outcome_hidden=hidden, covariates=CovariateConfig(dense_hidden=hidden)
        ),
        initial=JointTraining(iterations=400, learning_rate=1e-2, integration=GaussHermite(3)),
        alternating=Alternating(epochs=0),
        latents=LatentMap(steps=0),
    )
    data, covariates = _confounded(0), np.linspace(-1.5, 1.5, 31)

    def bias(config: BGMIVConfig) -> float:
        fitted = config.fit(data, 0)
        return float(np.mean(predict(fitted, 1.0, covariates) - predict(fitted, -1.0, covariates)) / 2.0) - 1.0

    without = bias(config.without_instrument())
    assert without > 0.2, "without the instrument the slope must be confounded"
    assert abs(bias(config)) < 0.5 * without


@pytest.mark.slow
def test_demand_is_learned_by_a_short_schedule() -> None:
    config = BGMIVConfig(
        model=ModelConfig(
            treatment_hidden=(32, 16), outcome_hidden=(32, 16), covariates=CovariateConfig(dense_hidden=(32, 32))
        ),
        initial=EGM(iterations=800, learning_rate=2e-3, integration=GaussHermite(1)),
        alternating=Alternating(epochs=2, integration=QuasiMonteCarlo(32)),
        latents=LatentMap(steps=100),
    )
    design = DemandDesign()
    grid = design.grid()
    fitted = config.fit(design.sample(1000, rho=0.5, seed=11), 11)
    error = np.mean((predict(fitted, grid.treatment, grid.covariates) - grid.truth) ** 2)
    constant = grid.truth.var()
    assert constant == pytest.approx(3.26e4, rel=0.01)
    assert error < constant / 5.0


def test_2sls_with_covariates_need_not_be_the_effect_on_compliers() -> None:
    """The example of docs/assumptions.md: the effect is 1 for everybody, and E[w | v] is not linear in v."""
    rng = np.random.default_rng(0)
    n = 4000
    v, e = rng.normal(size=(2, n))
    w = (rng.random(n) < np.where(np.abs(v) > 1.0, 0.9, 0.1)).astype(float)
    kind = rng.choice(["complier", "always", "never"], n, p=[0.5, 0.25, 0.25])
    taken = np.where(kind == "complier", w, kind == "always").astype(bool)
    data = {"outcome": taken + v**2 + e, "treatment": taken, "instruments": w, "covariates": v}
    assert TSLS().fit(**data).ate(t0=False, t1=True) == pytest.approx(4.4, abs=0.4)
    assert NPIV(random_state=0).fit(**data).ate(t0=False, t1=True) == pytest.approx(1.0, abs=0.3)
