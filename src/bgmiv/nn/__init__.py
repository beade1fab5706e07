"""Network parts: dense stacks and convolutions written for one row."""

from bgmiv.nn.images import Conv, TransposedConv, max_pool
from bgmiv.nn.mlp import MLP, Dense, adam, leaky_relu

__all__ = ["MLP", "Conv", "Dense", "TransposedConv", "adam", "leaky_relu", "max_pool"]
