"""Distributions read off network outputs."""

from bgmiv.likelihood.base import FiniteHead, Head
from bgmiv.likelihood.discrete import Bernoulli, Categorical
from bgmiv.likelihood.gaussian import Gaussian

__all__ = ["Bernoulli", "Categorical", "FiniteHead", "Gaussian", "Head"]
