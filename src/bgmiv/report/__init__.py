"""Figures and pages made from results."""

from __future__ import annotations

from bgmiv.report.figures import DemandPanels, demand_curves, figure_png

__all__ = ["DemandPanels", "demand_curves", "figure_png"]
