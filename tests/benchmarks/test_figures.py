from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import PathPatch

from bgmiv.bench import Row
from bgmiv.bench.show import read_rows
from report.figures import Series, error_boxes, error_lines, figure_bytes, make_series

from ..conftest import MakeCell


@pytest.fixture
def series(make_cell: MakeCell) -> list[Series]:
    rng = np.random.default_rng(2)
    rows: list[Row] = []
    for rho in (0.1, 0.9):
        for n in (1000, 5000):
            for method, mean in (("bgm-iv", 3000.0), ("kiv", 9000.0)):
                errors = (mean * rng.uniform(0.2, 1.8, 6)).tolist()
                rows += make_cell(method, errors, design="vector-proxy", rho=rho, n=n)
    rows += make_cell("bgm-iv", [4000.0, 5000.0, None], design="vector-proxy", rho=0.1, n=5000, preset="paper-qmc")
    return make_series(read_rows(rows))


def test_lines_show_means_bands_and_the_paper(series: list[Series]) -> None:
    labels = ["KIV (default)", "BGM-IV (default)", "BGM-IV (paper-qmc)"]
    assert [(one.label, one.variant) for one in series] == list(zip(labels, (0, 0, 1), strict=True))
    figure = error_lines("vector-proxy", series)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["rho = 0.1", "rho = 0.9"]
    panel = figure.axes[0]
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    kiv = next(line for line in panel.get_lines() if line.get_marker() == "D")
    expected = series[0].errors.query("rho == 0.1").groupby("n")["mse"].mean()
    np.testing.assert_allclose(kiv.get_ydata(), expected)
    stars = [line.get_ydata() for line in panel.get_lines() if line.get_marker() == "*"]
    assert sorted(np.concatenate(stars)) == [0.32, 0.32, 0.58, 0.90, 1.08]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*labels, "the paper's mean"]


def test_bands_stay_above_zero(make_cell: MakeCell) -> None:
    rows = [*make_cell("kiv", [1.0, 1.0, 1.0, 5000.0]), *make_cell("kiv", [1.0, 2.0, 4000.0], n=5000)]
    (band,) = error_lines("demand", make_series(read_rows(rows))).axes[0].collections
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(1e-4)


def test_boxes_stand_by_size_and_level(series: list[Series]) -> None:
    figure = error_boxes("vector-proxy", series)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["n = 1000", "n = 5000"]
    assert [sum(isinstance(patch, PathPatch) for patch in panel.patches) for panel in figure.axes] == [4, 4]
    # Two repeats are points, not a box.
    points = [line for line in figure.axes[1].get_lines() if line.get_marker() == "o" and len(line.get_ydata()) == 2]
    assert sorted(points[0].get_ydata()) == [0.4, 0.5]
    assert figure_bytes(figure, "pdf") == figure_bytes(error_boxes("vector-proxy", series), "pdf")


def test_a_name_is_never_a_formula(make_cell: MakeCell) -> None:
    name = r"$\frac{a}{$ <b> _x"
    rows = [*make_cell(name, [1.0, 2.0], design=name), *make_cell(name, [3.0], design=name, n=5000)]
    for draw in (error_lines, error_boxes):
        assert figure_bytes(draw(name, make_series(read_rows(rows)))).startswith(b"\x89PNG")
