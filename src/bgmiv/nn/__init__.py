"""Network parts: dense stacks written for one row."""

from bgmiv.nn.adam import adam
from bgmiv.nn.mlp import MLP, Dense, leaky_relu

__all__ = ["MLP", "Dense", "adam", "leaky_relu"]
