from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch

from bgmiv.bench.row import Row
from bgmiv.report.bench_figures import error_boxes, error_lines, series_of
from bgmiv.report.figures import METHOD_LABELS, figure_pdf, figure_png, method_styles
from bgmiv.report.results import Results
from bgmiv.report.tables import accuracy_columns

from .conftest import MakeCell


@pytest.fixture
def results(make_cell: MakeCell) -> Results:
    rng = np.random.default_rng(2)
    rows: list[Row] = []
    for rho in (0.1, 0.9):
        for n in (1000, 5000):
            for method, mean in (("bgm-iv", 3000.0), ("kiv", 9000.0)):
                errors = (mean * rng.uniform(0.2, 1.8, 6)).tolist()
                rows += make_cell(method, errors, design="vector-proxy", rho=rho, n=n)
    rows += make_cell("bgm-iv", [4000.0, 5000.0], design="vector-proxy", rho=0.1, n=5000, preset="paper-qmc")
    return Results.of(rows)


def panel_titles(axes: list[Axes]) -> list[str]:
    return [panel.get_title(loc="left") for panel in axes]


def test_lines_show_means_bands_and_the_paper(results: Results) -> None:
    series = series_of(results, "vector-proxy", accuracy_columns(results, "vector-proxy"))
    assert [(one.label, one.variant) for one in series] == [
        ("KIV", 0),
        ("BGM-IV (default)", 0),
        ("BGM-IV (paper-qmc)", 1),
    ]
    figure = error_lines("vector-proxy", series)
    assert panel_titles(figure.axes) == ["rho = 0.1", "rho = 0.9"]
    panel = figure.axes[0]
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    kiv = next(line for line in panel.get_lines() if line.get_marker() == "D")
    expected = [np.mean(series[0].values[s]) for s in sorted(series[0].values) if s.rho == 0.1]
    np.testing.assert_allclose(kiv.get_ydata(), expected)
    # A band each for the two with more than one size.
    assert len(panel.collections) >= 2
    stars = [line for line in panel.get_lines() if line.get_marker() == "*"]
    assert sorted(float(line.get_ydata()[0]) for line in stars) == [0.32, 0.32, 0.58, 0.90, 1.08]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["KIV", "BGM-IV (default)", "BGM-IV (paper-qmc)", "the paper's mean"]


def test_bands_stay_above_zero(make_cell: MakeCell) -> None:
    rows = [*make_cell("kiv", [1.0, 1.0, 1.0, 5000.0]), *make_cell("kiv", [1.0, 2.0, 4000.0], n=5000)]
    results = Results.of(rows)
    figure = error_lines("demand", series_of(results, "demand", accuracy_columns(results, "demand")))
    (band,) = figure.axes[0].collections
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(1e-4)


def test_boxes_stand_by_size_and_level(results: Results) -> None:
    series = series_of(results, "vector-proxy", accuracy_columns(results, "vector-proxy"))
    figure = error_boxes("vector-proxy", series)
    assert panel_titles(figure.axes) == ["n = 1000", "n = 5000"]
    boxes = [[patch for patch in panel.patches if isinstance(patch, PathPatch)] for panel in figure.axes]
    assert [len(found) for found in boxes] == [4, 4]
    # Two repeats are points, not a box.
    points = [line for line in figure.axes[1].get_lines() if line.get_marker() == "o" and len(line.get_ydata()) == 2]
    assert sorted(points[0].get_ydata()) == [0.4, 0.5]
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["0.1", "0.9"]


def test_a_name_is_never_a_formula(make_cell: MakeCell) -> None:
    name = r"$\frac{a}{$ <b> _x"
    rows = [*make_cell(name, [1.0, 2.0], design=name), *make_cell(name, [3.0], design=name, n=5000)]
    results = Results.of(rows)
    for draw in (error_lines, error_boxes):
        figure = draw(name, series_of(results, name, accuracy_columns(results, name)))
        assert figure_png(figure, dpi=50).startswith(b"\x89PNG")


def test_pdf_is_the_same_bytes(results: Results) -> None:
    def made() -> bytes:
        columns = accuracy_columns(results, "vector-proxy")
        return figure_pdf(error_boxes("vector-proxy", series_of(results, "vector-proxy", columns)))

    assert made() == made()


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="no fit to draw"):
        error_boxes("demand", [])


def test_methods_with_an_instrument_look_different() -> None:
    from bgmiv.estimators.registry import method_names

    styles = method_styles(method_names())
    assert set(method_names()) <= set(METHOD_LABELS)
    own = [styles[name] for name in method_names() if not name.endswith("-noiv")]
    for part in ([s.colour for s in own], [s.marker for s in own], [str(s.dashes) for s in own]):
        assert len(set(part)) == len(own)
    for name in method_names():
        assert styles[name] == styles[name.removesuffix("-noiv")] or name.endswith("-noiv")
