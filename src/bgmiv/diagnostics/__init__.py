"""Whether to trust a fit: checks that need the data and the fit, and no truth."""

from bgmiv.diagnostics.moments import conditions_of, moment_risk

__all__ = ["conditions_of", "moment_risk"]
