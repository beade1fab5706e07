from __future__ import annotations

import numpy as np
import pytest

from bgmiv.designs.demand import demand, price_support
from bgmiv.report.figures import DemandPanels, demand_curves, figure_png

PANELS = DemandPanels(times=(2.0, 5.0), groups=(1, 4, 7), n_prices=11)


def test_query_follows_the_panels() -> None:
    price, covariates = PANELS.query()
    shaped = {name: values.reshape(PANELS.shape) for name, values in {"price": price, **covariates}.items()}
    assert (shaped["group"][2] == 7).all()
    assert (shaped["time"][:, 1] == 5.0).all()
    np.testing.assert_array_equal(shaped["price"][1, 0], PANELS.price)


def test_figure_shows_truth_estimates_and_support() -> None:
    price, covariates = PANELS.query()
    truth = demand(price, covariates["time"], covariates["group"])
    figure = demand_curves(PANELS, {"bgm-iv": truth + 5.0, "new-method": truth - 5.0}, subtitle="n = 10")
    assert len(figure.axes) == 6
    for position, panel in enumerate(figure.axes):
        group, time = PANELS.groups[position // 2], PANELS.times[position % 2]
        lines = panel.get_lines()
        # Truth and two methods, each drawn faint everywhere and strong inside the support.
        assert len(lines) == 6
        np.testing.assert_allclose(lines[0].get_ydata(), demand(PANELS.price, time, group))
        np.testing.assert_allclose(lines[2].get_ydata(), demand(PANELS.price, time, group) + 5.0)
        low, high = price_support(time)
        shown = np.isfinite(np.asarray(lines[1].get_ydata(), dtype=float))
        np.testing.assert_array_equal(shown, (PANELS.price >= low) & (PANELS.price <= high))
        assert f"group {group}" in panel.get_title(loc="left")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["truth", "BGM-IV", "new-method", "prices seen at this season (99%)"]
    assert "n = 10" in figure.get_suptitle()


def test_png_has_the_asked_resolution() -> None:
    figure = demand_curves(DemandPanels(times=(5.0,), groups=(1,)), {})
    png = figure_png(figure, dpi=150)
    assert png.startswith(b"\x89PNG")
    width = int.from_bytes(png[16:20], "big")
    assert width == pytest.approx(figure.get_figwidth() * 150, abs=1)


def test_estimates_of_a_wrong_size_are_refused() -> None:
    with pytest.raises(ValueError, match="reshape"):
        demand_curves(PANELS, {"bgm-iv": np.zeros(3)})
