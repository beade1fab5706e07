"""The generative model and its objectives."""

from bgmiv.model.layout import LatentLayout
from bgmiv.model.model import BGMIVModel, ModelConfig, build_model
from bgmiv.model.objectives import Row

__all__ = ["BGMIVModel", "LatentLayout", "ModelConfig", "Row", "build_model"]
