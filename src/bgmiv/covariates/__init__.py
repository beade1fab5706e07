"""Covariate encoders and generators."""

from bgmiv.covariates.build import CovariateConfig, build_blocks, build_covariates, build_dense
from bgmiv.covariates.module import Branch, CovariateModule

__all__ = ["Branch", "CovariateConfig", "CovariateModule", "build_blocks", "build_covariates", "build_dense"]
