"""What the reports of measured rows are made of; importing it registers the designs that only our studies use."""

from __future__ import annotations

from bgmiv.designs import make_design
from report import published, semisynthetic, small_designs

__all__ = ["make_design", "published", "semisynthetic", "small_designs"]
