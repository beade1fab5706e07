"""Distributions read off network outputs."""

from bgmiv.likelihood.base import FiniteHead, Head
from bgmiv.likelihood.discrete import Bernoulli, Categorical, Levels
from bgmiv.likelihood.gaussian import Gaussian
from bgmiv.likelihood.mixture import GaussianMixture

__all__ = ["Bernoulli", "Categorical", "FiniteHead", "Gaussian", "GaussianMixture", "Head", "Levels"]
