"""The noisy designs: moments by simulation of a million rows, truths in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.designs import find_design, make_design
from bgmiv.designs.noisy import SHAPES, NoisyDemandDesign, NoisyDesign
from bgmiv.errors import ConfigError

VARIANTS = (
    NoisyDesign("linear"),
    NoisyDesign("concave", r2=0.1, partial_r2=0.02, errors="heavy-tailed"),
    NoisyDesign("heterogeneous", r2=0.6, partial_r2=0.3, errors="heteroskedastic", n_instruments=4),
    NoisyDesign("interaction", first_stage="nonlinear", instruments="binary", n_instruments=1),
    NoisyDesign("threshold", first_stage="nonlinear", partial_r2=0.1),
    NoisyDesign("null", binary_treatment=True),
)
ROWS = 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("design", VARIANTS, ids=lambda design: design.name)
def test_moments_are_as_stated(design: NoisyDesign) -> None:
    drawn = design.draw(ROWS, seed=17)
    g = design.structural(drawn.treatment, *drawn.covariates.values())
    rho = 0.7
    e = design.disturbance * (rho * drawn.shock + np.sqrt(1.0 - rho**2) * drawn.noise)
    assert g.var() / (g.var() + e.var()) == pytest.approx(design.r2, rel=0.02)
    assert np.corrcoef(drawn.shock, e)[0, 1] == pytest.approx(rho, rel=0.02)
    if not design.binary_treatment:
        assert drawn.treatment.std() == pytest.approx(design.treatment_scale, rel=0.01)
        explained = drawn.treatment - drawn.shock
        # What instruments add to the covariates: f has mean zero given V, so that m(V) is a linear regression on V
        # and the products that f may have with V1 are left in the residual.
        v = np.column_stack([np.ones(ROWS), *drawn.covariates.values()])
        added = explained - v @ np.linalg.solve(v.T @ v, v.T @ explained)
        assert added.var() / (added.var() + drawn.shock.var()) == pytest.approx(design.partial_r2, rel=0.02)
    # E[e | w, v] = 0: no function of instruments and covariates is correlated with the disturbance.
    w, v1 = drawn.instruments["w1"], drawn.covariates["v1"]
    functions = (w, v1, w * v1, w**2, v1**2, np.sin(2.0 * w), drawn.covariates["v6"] * w, drawn.covariates["v8"])
    for values in functions:
        values = values - values.mean()
        if values.std() > 0.0:
            assert abs(np.mean(values * e)) < 4.0 * np.std(values * e) / np.sqrt(ROWS)


def test_truth_is_the_formula() -> None:
    v = np.zeros((3, 10))
    v[:, 0], v[:, 5], v[:, 7] = (0.0, 1.0, -1.0), (0.4, 1.0, 0.4), 2.0
    x = np.array([0.0, 1.0, -2.0])
    main = np.array([0.0, 0.3 + 0.3 * 0.6, -0.3])
    expected = {
        "linear": x,
        "concave": x - 0.6 * x**2,
        "threshold": 2.5 / (1.0 + np.exp(-4.0 * x)),
        "heterogeneous": x * (1.0 + v[:, 0]),
        "interaction": x * (0.8 + 1.2 * v[:, 0] * v[:, 5]),
        "null": 0.0 * x,
    }
    assert set(expected) == set(SHAPES)
    for shape, values in expected.items():
        design = NoisyDesign(shape)
        found = design.structural(x * design.treatment_scale, *v.T)
        np.testing.assert_allclose(found, values + main, atol=1e-12)


def test_functionals_of_a_line_are_its_slope() -> None:
    design = NoisyDesign("linear")
    found = design.grid().functionals
    assert found["slope"].truth == pytest.approx(1.0 / design.treatment_scale)
    assert found["contrast"].truth == pytest.approx(
        (found["contrast"].t1 - found["contrast"].t0) / design.treatment_scale
    )
    null = NoisyDesign("null", binary_treatment=True).grid().functionals
    assert {name: one.truth for name, one in null.items()} == {"contrast": 0.0}


def test_grid_lies_between_the_quantiles_of_the_treatment() -> None:
    grid, x = NoisyDesign("concave").grid(), NoisyDesign("concave").draw(100_000, 5).treatment
    assert np.mean(x < grid.treatment.min()) == pytest.approx(0.05, abs=0.005)
    assert np.mean(x > grid.treatment.max()) == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize(("disturbance", "r2"), [(50.0, 0.946), (150.0, 0.566), (240.0, 0.324)])
def test_scaled_demand_has_the_stated_r2(disturbance: float, r2: float) -> None:
    design = NoisyDemandDesign(disturbance)
    data, quiet = design.sample(400_000, 0.9, 3), NoisyDemandDesign(0.0).sample(400_000, 0.9, 3)
    truth, noise = quiet.outcome.astype(float), data.outcome.astype(float) - quiet.outcome
    assert truth.var() / data.outcome.astype(float).var() == pytest.approx(r2, rel=0.02)
    assert abs(np.mean(noise)) < 4.0 * disturbance / np.sqrt(400_000)


def test_settings_are_part_of_the_name() -> None:
    design = make_design("noisy-concave:r2=0.1,errors=heavy-tailed")
    assert design == NoisyDesign("concave", r2=0.1, errors="heavy-tailed")
    assert make_design("noisy-linear:binary_treatment=True") == NoisyDesign(binary_treatment=True)
    assert make_design("noisy-vector:disturbance=240").name == "noisy-vector:disturbance=240"
    for name, words in (
        ("noisy-concave:curve=1", "'curve=1' is not a setting"),
        ("noisy-concave:r2=high", "r2 is such as 0.3"),
        ("noisy-concave:r2=2", "r2 is 2.0; choose a value between 0 and 1"),
        ("noisy-concave:errors=odd", "choose one of normal"),
        ("noisy-concave:n_instruments=9", "choose 1 to 4"),
        ("noisy-concave:errors=heavy-tailed,r2=0.1", "use that name"),
        ("noisy-demand:proxy=sound", "choose one of group"),
        ("noisy-demand:proxy=vector", "use that name"),
    ):
        with pytest.raises(ConfigError, match=words):
            find_design(name)
