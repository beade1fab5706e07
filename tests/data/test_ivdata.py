"""What validated data promise: kinds, read-only arrays, subsets."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.data import BlockKind, IVData
from bgmiv.errors import BGMIVWarning, DataError, FitWarning, KindWarning

rng = np.random.default_rng(2)
N = 30
Y, X, W = rng.normal(size=(3, N))
FLAG = np.arange(N) % 2


@pytest.mark.parametrize(
    ("treatment", "declared", "kind"),
    [
        (X, "auto", BlockKind.continuous),
        (FLAG, "continuous", BlockKind.continuous),
        (FLAG, "binary", BlockKind.binary),
        (FLAG.astype(bool), "auto", BlockKind.binary),
        (FLAG.astype(bool), "continuous", BlockKind.continuous),
    ],
)
def test_treatment_kind(treatment, declared, kind):
    data = IVData.from_arrays(Y, treatment, instruments=W, treatment_kind=declared)
    assert data.schema.treatment.kind is kind
    np.testing.assert_array_equal(data.treatment, treatment.astype(float))


def test_zero_one_columns_are_told_in_one_line_at_the_caller():
    flags = {"black": (np.arange(N) % 3 == 0).astype(int)}
    with pytest.warns(KindWarning, match=r"treatment; covariates 'black'\. .*treatment_kind='continuous' or") as caught:
        data = IVData.from_arrays(Y, FLAG, instruments=W, covariates=flags)
    assert len(caught) == 1
    assert data.schema.treatment.kind is BlockKind.binary
    assert caught[0].filename == __file__


@pytest.mark.parametrize("role", ["outcome", "treatment"])
def test_two_other_numbers_are_asked_about(role):
    columns = {"outcome": Y, "treatment": X} | {role: FLAG + 1}
    with pytest.warns(BGMIVWarning, match=rf"{role} has two values only, 1 and 2.*{role}_kind='categorical'"):
        data = IVData.from_arrays(**columns, instruments=W)
    assert getattr(data.schema, role).kind is BlockKind.continuous
    for kind in ("categorical", "continuous"):
        IVData.from_arrays(**columns, instruments=W, **{f"{role}_kind": kind})


def test_outcome_kind():
    assert IVData.from_arrays(Y > 0, X, instruments=W).schema.outcome.kind is BlockKind.binary
    for kind in ("continuous", "binary"):
        assert IVData.from_arrays(FLAG, X, instruments=W, outcome_kind=kind).schema.outcome.kind == kind
    with pytest.warns(KindWarning, match=r"0 and 1: outcome\..*outcome_kind='continuous'"):
        assert IVData.from_arrays(FLAG, X, instruments=W).schema.outcome.kind is BlockKind.binary


def test_constant_parts_of_a_vector_are_allowed():
    vector = np.column_stack([X + W, np.zeros(N)])
    data = IVData.from_arrays(Y, X, instruments=W, covariates={"proxy": vector})
    assert data.covariates.shape == (N, 2)


def test_arrays_are_read_only_copies():
    outcome, covariates = Y.copy(), rng.normal(size=(N, 2))
    data = IVData.from_arrays(outcome, X, instruments=W, covariates=covariates)
    for array in (data.outcome, data.treatment, data.covariates, data.instruments):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0
    outcome[0], covariates[0] = 99.0, 99.0
    assert data.outcome[0] == Y[0]
    assert data.covariates[0, 0] != 99.0


def test_direct_construction_leaves_the_callers_arrays_alone():
    data = IVData.from_arrays(Y, X, instruments=W)
    outcome = Y.copy()
    IVData(outcome, data.treatment, data.covariates, data.instruments, data.schema)
    outcome[0] = 5.0


@pytest.mark.parametrize(
    "rows", [np.array([3, 1, 1]), [3, 1, 1], slice(2, 9, 2), np.arange(N) > 20], ids=["array", "list", "slice", "mask"]
)
def test_take(rows):
    data = IVData.from_arrays(Y, X, instruments=W, covariates={"a": Y + W, "p": rng.normal(size=(N, 3))})
    part = data.take(rows)
    for name in ("outcome", "treatment", "covariates", "instruments"):
        np.testing.assert_array_equal(getattr(part, name), getattr(data, name)[rows])
        assert not getattr(part, name).flags.writeable
    assert part.schema is data.schema


def test_without_instruments():
    data = IVData.from_arrays(Y, X, instruments=np.column_stack([W, Y + X]))
    without = data.without_instruments()
    assert without.instruments.shape == (N, 0)
    assert without.schema.instruments == ()
    assert without.schema.treatment == data.schema.treatment


def test_nearly_equal_columns_are_not_identical():
    almost = X.copy()
    almost[17] += 1e-3
    with pytest.warns(FitWarning, match="nearly"):
        data = IVData.from_arrays(Y, X, instruments=W, covariates={"a": almost})
    assert data.schema.covariate_names == ("a",)


def test_overlap_is_found_between_the_probed_rows():
    n = 1000
    treatment = rng.normal(size=n)
    shared = (np.arange(n) % 100 == 50).astype(float)
    covariates = np.column_stack([np.arange(n), 2.0 - shared, shared])
    with pytest.raises(ValueError, match="covariates column 'covariate_2' is identical to"):
        IVData.from_arrays(
            rng.normal(size=n),
            treatment,
            instruments=shared,
            covariates=covariates,
            blocks={"covariate_2": "continuous"},
        )


A = rng.normal(size=N)
EXACT = {
    "another unit": ({"miles": X / 1.609}, None, {}, "instrument 'miles', so"),
    "another unit in single precision": (
        {"miles": (2000 + X).astype(np.float32) / 1.609},
        None,
        {},
        "instrument 'miles', so",
    ),
    "a sum with a covariate": ({"base": X - A}, {"a": A, "b": W}, {}, "covariates column 'a', instrument 'base', so"),
    "a covariate alone": ({"w": W}, {"a": 3.0 - X / 7.0}, {}, "covariates column 'a', so"),
    "shares that add up": ({"w": W, "rest": 1.0 - X - A}, {"a": A}, {}, "covariates column 'a', instrument 'rest', so"),
    "every row that counts": ({"w": np.where(FLAG, X / 2, W)}, None, {"sample_weight": FLAG}, "instrument 'w', so"),
}


@pytest.mark.parametrize("case", EXACT)
def test_a_treatment_that_others_determine_is_refused(case: str) -> None:
    instruments, covariates, more, names = EXACT[case]
    treatment = {"km": 2000 + X if "precision" in case else X}
    with pytest.raises(DataError, match=f"treatment 'km' is an exact linear combination of {names}"):
        IVData.from_arrays(Y, treatment, instruments=instruments, covariates=covariates, **more)


def test_a_level_that_an_instrument_decides_is_refused() -> None:
    level = np.where(W > 0.5, "high", np.where(X > 0, "low", "none"))
    with pytest.raises(DataError, match="treatment is an exact linear combination of instrument 'w'"):
        IVData.from_arrays(Y, level, instruments={"w": (W > 0.5) * 1.0})


def test_a_strong_instrument_is_not_refused() -> None:
    for noise in (1e-4, 1e-6):
        assert IVData.from_arrays(Y, X, instruments=X + noise * W).n_rows == N
    # One row in which they differ is enough, also if it is not among those looked at first.
    many = rng.normal(size=5000)
    other = many.copy()
    other[1] += 1.0
    assert IVData.from_arrays(rng.normal(size=5000), many, instruments=other).n_rows == 5000


def test_too_many_instruments_for_the_rows() -> None:
    rng = np.random.default_rng(0)
    y, x, w = rng.normal(size=40), rng.normal(size=40), rng.normal(size=(40, 21))
    IVData.from_arrays(y, x, instruments=w[:, :20])
    with pytest.raises(DataError, match=r"21 instruments for 40 rows.* at least 42 rows, or fewer instruments"):
        IVData.from_arrays(y, x, instruments=w)


def test_an_outcome_that_covariates_determine_is_refused() -> None:
    rng = np.random.default_rng(0)
    w, v, u, e = rng.normal(size=(4, 200))
    x, y = w + u, w + v - u + e
    covariates = {"age": v, "double": 2.0 * y, "other": rng.normal(size=200)}
    with pytest.raises(DataError, match="outcome is an exact linear combination of covariates column 'double'"):
        IVData.from_arrays(y, x, instruments=w, covariates=covariates)
    total = {"age": v, "rest": y - v}
    with pytest.raises(DataError, match="'age', covariates column 'rest', so the treatment has nothing"):
        IVData.from_arrays(y, x, instruments=w, covariates=total)
    IVData.from_arrays(y, x, instruments=w, covariates={"double": 2.0 * y + 1e-3 * u})


def test_a_near_copy_of_the_treatment_is_announced() -> None:
    rng = np.random.default_rng(0)
    w, v, u, e = rng.normal(size=(4, 200))
    x = w + v + u
    told_so = r"nearly a linear combination of covariates column 'copy': .* \(R² 0\.99"
    with pytest.warns(FitWarning, match=told_so) as told:
        IVData.from_arrays(x + u, x, instruments=w, covariates={"age": v, "copy": x + 0.01 * e})
    assert len(told) == 1
    IVData.from_arrays(x + u, x, instruments=w, covariates={"age": v, "proxy": x + 0.3 * e})
