"""Whether to trust a fit: what the data alone say about it."""

from bgmiv.trust.moments import conditions_of, moment_risk

__all__ = ["conditions_of", "moment_risk"]
