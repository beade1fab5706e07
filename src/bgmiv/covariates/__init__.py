"""Covariate encoders and generators."""

from bgmiv.covariates.build import CovariateConfig, build_blocks, build_covariates, build_dense, build_features
from bgmiv.covariates.features import BlockFeatures
from bgmiv.covariates.images import ImageConfig, rows_at_once
from bgmiv.covariates.module import Branch, CovariateModule

__all__ = [
    "BlockFeatures",
    "Branch",
    "CovariateConfig",
    "CovariateModule",
    "ImageConfig",
    "build_blocks",
    "build_covariates",
    "build_dense",
    "build_features",
    "rows_at_once",
]
