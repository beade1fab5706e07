"""Real rows with a simulated treatment and outcome: moments as stated, and those of the study."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv import TSLS
from bgmiv.designs import load_empirical
from bgmiv.errors import ConfigError
from report import make_design
from report.semisynthetic import SEMISYNTHETIC, SemisyntheticDesign

N = 1_000_000
COVARIATES = {
    "card": "exper + expersq + black + smsa + south + smsa66",
    "401ksubs": "inc + age + agesq + marr + fsize",
    "meps": "totchr + female + age + linc + blhisp",
}
TREATMENTS = {
    "card": "lwage ~ {} + [educ ~ nearc4]",
    "401ksubs": "nettfa ~ {} + [p401k ~ e401k]",
    "meps": "ldrugexp ~ {} + [hi_empunion ~ ssiratio]",
}


def share_explained(target: np.ndarray, columns: np.ndarray) -> float:
    columns = np.column_stack([np.ones(len(target)), (columns - columns.mean(axis=0)) / columns.std(axis=0)])
    residual = target - columns @ np.linalg.solve(columns.T @ columns, columns.T @ target)
    return float(1.0 - residual.var() / target.var())


@pytest.mark.slow
@pytest.mark.parametrize(("study", "shape"), SEMISYNTHETIC)
def test_moments_of_a_large_sample(study: str, shape: str) -> None:
    design = SemisyntheticDesign(study, shape)
    data = design.sample(N, 0.6, 0)
    v, w, x = data.covariates, data.instruments, data.treatment
    g = design.structural(x, *v.T)
    error = data.outcome - g
    # E[e | w, v] = 0 and the treatment is endogenous.
    conditions = np.column_stack([np.ones(N), v, w, w * v])
    mean, square = error @ conditions / N, error**2 @ conditions**2 / N
    assert (np.abs(mean) < 4.5 * np.sqrt((square - mean**2) / N)).all()
    assert abs(np.corrcoef(error, x)[0, 1]) > 0.1
    # The share of g.
    assert error.std() == pytest.approx(design.disturbance, rel=0.02)
    assert g.var() / (g.var() + error.var()) == pytest.approx(design.share, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("study", COVARIATES)
def test_models_are_those_of_the_study(study: str) -> None:
    design, real = SemisyntheticDesign(study), load_empirical(study)
    result = TSLS().fit_formula(TREATMENTS[study].format(COVARIATES[study]), real.table).fitted_.result
    slope = float(result.params.iloc[-1])
    grid = design.grid()
    assert grid.functionals["contrast"].truth / (
        np.subtract(grid.functionals["contrast"].t1, grid.functionals["contrast"].t0)
    ) == pytest.approx(slope, rel=1e-6)
    partial = float(result.first_stage.diagnostics["partial.rsquared"].iloc[0])
    # The instrument is as strong as in the study: a partial R² of 0.005 is known to 3% from so many rows.
    drawn = design.draw(N, 0)
    v, w = np.column_stack([*drawn.covariates.values()]), np.column_stack([*drawn.instruments.values()])
    without, both = (share_explained(drawn.treatment, columns) for columns in (v, np.column_stack([v, w])))
    assert (both - without) / (1.0 - without) == pytest.approx(partial, rel=0.03, abs=3e-4)
    assert design.share == pytest.approx(_r2(design, real.table), rel=1e-9)
    # As many are treated as in the study.
    data = design.sample(200_000, 0.5, 3)
    assert data.treatment.mean() == pytest.approx(real.table[data.schema.treatment.name].mean(), abs=0.02)
    assert data.treatment.std() == pytest.approx(real.table[data.schema.treatment.name].std(), rel=0.01)


def _r2(design: SemisyntheticDesign, table: dict[str, np.ndarray]) -> float:
    names = [name.strip() for name in COVARIATES[design.study].split("+")]
    outcome, treatment = TREATMENTS[design.study].split(" ~ ")[0], TREATMENTS[design.study].split("[")[1].split()[0]
    columns = np.column_stack([table[name].astype(float) for name in [*names, treatment]])
    return share_explained(table[outcome].astype(float), columns)


def test_rows_are_real_and_the_fertility_sample_is_fixed() -> None:
    table = load_empirical("card").table
    real = {tuple(row) for row in np.column_stack([table["exper"], table["black"], table["nearc4"]]).astype(float)}
    data = SemisyntheticDesign("card").sample(1000, 0.5, 0)
    drawn = np.column_stack([data.covariates[:, [0, 2]], data.instruments])
    assert {tuple(row) for row in drawn} <= real
    assert [block.kind.value for block in data.schema.blocks][:2] == ["continuous", "binary"]
    kinds = SemisyntheticDesign("fertility").sample(500, 0.5, 0).schema
    assert (kinds.treatment.kind.value, kinds.instruments) == ("binary", ("samesex",))


def test_nobody_takes_part_who_is_not_eligible() -> None:
    data = SemisyntheticDesign("401ksubs").sample(100_000, 0.5, 0)
    assert data.treatment[data.instruments[:, 0] == 0.0].mean() < 0.005


def test_shapes_and_settings() -> None:
    concave, line = (SemisyntheticDesign("card", shape) for shape in ("concave", "linear"))
    v = [np.full(3, value) for value in (5.0, 25.0, 0.0, 1.0, 0.0, 1.0)]
    x = np.array([8.0, 13.0, 18.0])
    assert np.diff(line.structural(x, *v), n=2)[0] == pytest.approx(0.0, abs=1e-12)
    assert np.diff(concave.structural(x, *v), n=2)[0] < -0.1
    strong = make_design("semi-card-linear:strength=5,r2=0.5")
    assert strong == SemisyntheticDesign("card", strength=5.0, r2=0.5)
    assert strong.share == 0.5  # type: ignore[attr-defined]
    for wrong, word in (
        ({"study": "mroz"}, "study is 'mroz'; choose one of card"),
        ({"shape": "cubic"}, "shape is 'cubic'"),
        ({"study": "meps", "shape": "concave"}, "binary and has no concave effect"),
        ({"strength": 0.0}, "the instrument must move"),
        ({"r2": 1.0}, "r2 is 1.0"),
    ):
        with pytest.raises(ConfigError, match=word):
            SemisyntheticDesign(**wrong)  # type: ignore[arg-type]
