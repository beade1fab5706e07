"""Reduction of wide blocks: the number of components, the scores, and the schema they leave behind."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from bgmiv.data import BlockKind, IVData, RoleScaling, scaling
from bgmiv.designs import VectorProxyDesign
from bgmiv.errors import DataError
from bgmiv.preprocess import reduction
from bgmiv.preprocess.reduction import BlockReduction, leading_components

VECTORS = BlockReduction(images=False)


def factors(n, d, k=3, noise=0.5, seed=0):
    """Rows of k common factors, of distinct strengths, and noise."""
    rng = np.random.default_rng(seed)
    strengths = np.linspace(2.0, 1.0, k)
    return rng.normal(size=(n, k)) * strengths @ rng.normal(size=(k, d)) + noise * rng.normal(size=(n, d)) + 3.0


def reference(values, k, rows=None):
    """Unit-variance scores of `rows` by a dense singular value decomposition of the standardised columns."""
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    standard = (values - mean) / deviation
    _, sizes, directions = np.linalg.svd(standard, full_matrices=False)
    directions = directions[:k].T
    largest = np.argmax(np.abs(directions), axis=0)
    directions = directions * np.sign(directions[largest, np.arange(k)])
    rows = standard if rows is None else (rows - mean) / deviation
    eigenvalues = sizes**2 / len(values)
    return rows @ directions / np.sqrt(eigenvalues[:k]), eigenvalues


@pytest.mark.parametrize(("n", "seed"), [(300, 0), (600, 1)])
def test_seven_centres_give_six_components(n, seed):
    proxy = VectorProxyDesign().sample(n, rho=0.5, seed=seed).covariates[:, 1:]
    projection = leading_components(proxy)
    assert projection.n_components == projection.above_noise == 6
    assert 0.6 < projection.explained < 0.85


def test_scores_tell_the_groups_of_new_rows():
    design = VectorProxyDesign()
    projection = leading_components(design.sample(300, rho=0.5, seed=0).covariates[:, 1:])
    centres = projection.transform(design.prototypes())
    rng = np.random.default_rng(0)
    group = rng.integers(0, 7, 500)
    fresh = projection.transform(design.prototypes()[group] + 0.5 * rng.normal(size=(500, 784)))
    nearest = np.square(fresh[:, None] - centres).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(nearest, group)


@pytest.mark.parametrize("shape", [(60, 20), (30, 100), (300, 784)])
def test_noise_is_not_structured(shape):
    projection = leading_components(np.random.default_rng(1).normal(size=shape))
    assert (projection.n_components, projection.above_noise) == (1, 0)
    assert projection.explained < 0.2


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy"])
def test_false_alarms_are_rare(draw):
    alarms = 0
    for seed in range(100):
        values = getattr(np.random.default_rng(seed), draw)(size=(50, 20))
        alarms += leading_components(values).above_noise > 0
    # About one is expected; the largest of the eight copies' eigenvalues would be exceeded eleven times.
    assert alarms <= 4


@pytest.mark.parametrize("shape", [(400, 30), (40, 200)])
def test_a_block_without_noise_keeps_its_whole_rank(shape):
    projection = leading_components(factors(*shape, k=4, noise=0.0))
    assert projection.n_components == 4
    assert projection.explained == pytest.approx(1.0, abs=1e-9)


def test_what_hides_below_the_noise_of_standardised_columns_shows_in_explained():
    rng = np.random.default_rng(0)
    projection = leading_components(rng.normal(size=(1000, 20)) @ rng.normal(size=(20, 20)))
    assert 1 < projection.n_components < 20
    assert 0.5 < projection.explained < 0.9


# Across the sizes at which the smaller matrix of products is one of columns, or one of rows.
@pytest.mark.parametrize("shape", [(500, 20), (151, 150), (20, 500)])
def test_scores_equal_the_singular_value_decomposition(shape):
    values = factors(*shape)
    projection = leading_components(values)
    k = projection.n_components
    scores, eigenvalues = reference(values, k)
    assert k == 3
    np.testing.assert_allclose(projection.transform(values), scores, atol=2e-5)
    assert projection.explained == pytest.approx(eigenvalues[:k].sum() / eigenvalues.sum(), rel=1e-10)


def test_both_ways_to_the_components_agree():
    square = factors(80, 80, k=3)
    padded = np.concatenate([square, np.full((80, 1), 5.0)], axis=1)
    narrow, wide = leading_components(square), leading_components(padded)
    np.testing.assert_allclose(wide.basis[:-1], narrow.basis, atol=1e-10)
    assert (wide.basis[-1] == 0).all()
    assert wide.explained == pytest.approx(narrow.explained, rel=1e-12)


def test_new_rows_follow_the_formula():
    values, rows = factors(300, 40), factors(7, 40, seed=9)
    projection = leading_components(values)
    scores = projection.transform(rows)
    np.testing.assert_allclose(scores, reference(values, 3, rows)[0], atol=2e-5)
    by_hand = ((rows - projection.mean) / projection.scale) @ projection.basis
    np.testing.assert_array_equal(scores, by_hand.astype(np.float32))
    assert projection.transform(rows[:0]).shape == (0, 3)


@pytest.mark.parametrize("shape", [(300, 40), (40, 300)])
def test_column_order_scale_and_shift_do_not_matter(shape):
    values = factors(*shape)
    rng = np.random.default_rng(2)
    order = rng.permutation(shape[1])
    units = 10.0 ** rng.uniform(-20, 20, shape[1])
    changed = ((values + rng.normal(size=shape[1])) * units)[:, order]
    first, second = leading_components(values), leading_components(changed)
    assert first.above_noise == second.above_noise == 3
    np.testing.assert_allclose(second.transform(changed), first.transform(values), atol=1e-6)


def test_signs_are_fixed_even_if_loadings_tie():
    rng = np.random.default_rng(0)
    common = rng.normal(size=(100, 1))
    values = np.concatenate([common, -common], axis=1) + 0.1 * rng.normal(size=(100, 2))
    for rows in (values, values[::-1], values[rng.permutation(100)]):
        basis = leading_components(rows).basis
        assert basis[0, 0] > 0 > basis[1, 0]


def test_equal_values_give_equal_components(monkeypatch):
    values = factors(600, 30)
    monkeypatch.setattr(reduction, "_MAX_ROWS", 200)
    for first, second in zip(leading_components(values), leading_components(values.copy()), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("shape", [(300, 40), (40, 300)])
def test_pieces_agree_with_the_whole(shape, monkeypatch):
    values = factors(*shape)
    whole = leading_components(values)
    scores = whole.transform(values)
    monkeypatch.setattr(scaling, "_PIECE", 1000)
    assert len(list(scaling.row_pieces(values))) > 1
    pieces = leading_components(values)
    assert pieces.above_noise == whole.above_noise
    np.testing.assert_allclose(pieces.basis, whole.basis, atol=1e-10)
    np.testing.assert_allclose(whole.transform(values), scores, atol=1e-6)


def test_few_rows_decide_and_all_rows_fit(monkeypatch):
    values = factors(5000, 30)
    monkeypatch.setattr(reduction, "_MAX_ROWS", 300)
    projection = leading_components(values)
    assert projection.n_components == 3
    np.testing.assert_allclose(projection.transform(values), reference(values, 3)[0], atol=2e-5)


def test_a_block_wider_than_the_rows_that_decide_is_fitted_on_them(monkeypatch):
    values = factors(500, 120)
    monkeypatch.setattr(reduction, "_MAX_ROWS", 100)
    projection = leading_components(values)
    assert projection.n_components == 3
    scores = projection.transform(values)
    np.testing.assert_allclose(scores.std(axis=0), 1.0, atol=0.2)
    fit = np.linalg.lstsq(reference(values, 3)[0], scores, rcond=None)[0]
    np.testing.assert_allclose(scores, reference(values, 3)[0] @ fit, atol=0.3)


def test_many_rows_need_little_memory(monkeypatch):
    monkeypatch.setattr(scaling, "_PIECE", 1 << 14)
    rng = np.random.default_rng(0)
    values = rng.standard_normal((50_000, 20), dtype=np.float32)
    values[:, :10] += values[:, -1:]
    tracemalloc.start()
    try:
        monkeypatch.setattr(reduction, "_MAX_ROWS", 500)
        projection = leading_components(values)
        scores = projection.transform(values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert scores.shape == (50_000, 1)
    assert peak < values.nbytes / 2


@pytest.mark.parametrize("shape", [(100, 25), (25, 100)])
def test_constant_columns_contribute_nothing(shape):
    values = factors(*shape)
    values[:, 7] = 1e20
    projection = leading_components(values)
    assert projection.scale[7] == 1.0
    assert (projection.basis[7] == 0).all()
    rest = leading_components(np.delete(values, 7, axis=1))
    assert projection.explained == pytest.approx(rest.explained, rel=1e-10)
    np.testing.assert_allclose(projection.transform(values), rest.transform(np.delete(values, 7, axis=1)), atol=1e-6)


@pytest.mark.parametrize("shape", [(50, 3), (3, 50), (1, 1)])
def test_a_constant_block_gives_zeros(shape):
    projection = leading_components(np.full(shape, 0.1))
    assert (projection.above_noise, projection.explained) == (0, 0.0)
    np.testing.assert_array_equal(projection.transform(np.full(shape, 0.1)), np.zeros((shape[0], 1)))


def test_one_and_two_columns():
    one = np.random.default_rng(0).normal(5.0, 2.0, size=(200, 1))
    alone = leading_components(one)
    assert (alone.n_components, alone.above_noise, alone.explained) == (1, 0, 1.0)
    np.testing.assert_allclose(alone.transform(one), (one - one.mean()) / one.std(), atol=1e-5)
    pair = leading_components(np.concatenate([one, -3.0 * one], axis=1))
    assert (pair.n_components, pair.above_noise) == (1, 1)
    assert pair.explained == pytest.approx(1.0)


def test_too_few_rows_show_no_structure():
    values = np.random.default_rng(0).normal(size=(3, 300))
    projection = leading_components(values)
    assert not projection.above_noise
    np.testing.assert_allclose(projection.transform(values).std(axis=0), 1.0, rtol=1e-5)


@pytest.mark.parametrize("values", [np.eye(200), np.repeat(np.eye(200), 2, axis=1), np.repeat(np.eye(200), 2, axis=0)])
def test_equal_eigenvalues_are_no_structure(values):
    assert not leading_components(values).above_noise


def mixed(n=200, seed=0):
    """Data with blocks on both sides of a wide one, a narrow vector, and an image."""
    rng = np.random.default_rng(seed)
    return IVData.from_arrays(
        rng.normal(size=n),
        rng.normal(size=n),
        instruments=rng.normal(size=n),
        covariates={
            "age": rng.normal(50.0, 10.0, n),
            "proxy": factors(n, 60, seed=seed),
            "region": np.array(["n", "s"])[np.arange(n) % 2],
            "short": factors(n, 8, seed=seed),
            "photo": 1.0 / (1.0 + np.exp(-factors(n, 25, seed=seed).reshape(n, 5, 5))),
            "noise": rng.normal(size=(n, 20)),
        },
        blocks={"region": "categorical"},
    )


def test_only_wide_structured_vectors_are_reduced():
    data = mixed()
    fitted = VECTORS.fit(data)
    assert set(fitted.projections) == {"proxy"}
    layout = [(block.name, block.kind, block.start, block.stop) for block in fitted.schema.blocks]
    assert layout == [
        ("age", BlockKind.continuous, 0, 1),
        ("proxy", BlockKind.vector, 1, 4),
        ("region", BlockKind.categorical, 4, 6),
        ("short", BlockKind.vector, 6, 14),
        ("photo", BlockKind.image, 14, 39),
        ("noise", BlockKind.vector, 39, 59),
    ]
    assert fitted.schema.flat_names[:6] == ("age", "proxy[pc1]", "proxy[pc2]", "proxy[pc3]", "region=n", "region=s")
    assert fitted.source == data.schema


def test_transform_puts_the_scores_in_their_place():
    data, later = mixed(), mixed(n=30, seed=5)
    fitted = VECTORS.fit(data)
    for rows in (data.covariates, later.covariates, later.covariates.astype(np.float32)):
        flat = fitted.transform(rows)
        assert (flat.shape, flat.dtype) == ((len(rows), 59), rows.dtype)
        np.testing.assert_array_equal(flat[:, :1], rows[:, :1])
        np.testing.assert_array_equal(flat[:, 1:4], fitted.projections["proxy"].transform(rows[:, 1:61]))
        np.testing.assert_array_equal(flat[:, 4:], rows[:, 61:])


def test_reduced_data_are_data_like_any_other():
    data = mixed()
    reduced = VECTORS.fit(data).apply(data)
    np.testing.assert_array_equal(reduced.outcome, data.outcome)
    scaled = RoleScaling().fit(reduced).transform(reduced).v
    # Whitened scores are standardised already.
    np.testing.assert_allclose(scaled[:, 1:4], reduced.covariates[:, 1:4], atol=1e-5)


def test_apply_keeps_the_rest_of_the_schema():
    data = mixed()
    fitted = VECTORS.fit(data)
    reduced = fitted.apply(data.without_instruments().take(slice(5)))
    assert (reduced.schema.instruments, reduced.instruments.shape) == ((), (5, 0))
    assert reduced.schema.blocks == fitted.schema.blocks


def test_without_a_wide_vector_nothing_changes(monkeypatch):
    data = mixed()
    monkeypatch.setattr(reduction, "_MIN_WIDTH", 61)
    fitted = VECTORS.fit(data)
    assert not fitted.projections
    assert fitted.schema is data.schema
    assert fitted.transform(data.covariates) is data.covariates
    assert fitted.apply(data) is data
    plain = IVData.from_arrays([1.0, 2.0], [0.0, 1.5], instruments=[3.0, 1.0])
    assert VECTORS.fit(plain).apply(plain) is plain


def test_other_covariates_are_refused():
    data = mixed()
    other = IVData.from_arrays(
        [1.0, 2.0, 5.0], [0.0, 1.5, 1.0], instruments=[1.0, 2.0, 3.0], covariates={"age": [1.0, 2.0, 4.0]}
    )
    with pytest.raises(DataError, match="same blocks"):
        VECTORS.fit(data).apply(other)
