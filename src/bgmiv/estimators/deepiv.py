"""DeepIV (Hartford et al. 2017): a mixture-density first stage, and an outcome network trained through its draws."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import numpy as np
from jax import Array

from bgmiv.compilation import enable_compilation_cache
from bgmiv.covariates import CovariateConfig, build_features
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import Identity, RoleScaling, Scaler
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator
from bgmiv.likelihood import Bernoulli, GaussianMixture, Head
from bgmiv.progress import Reporter, silent
from bgmiv.train.deepiv import CovariateNet, OutcomeStage, TreatmentStage, net_values, treatment_raws
from bgmiv.train.history import HistoryRow
from bgmiv.train.loop import run_phase, training_data

__all__ = ["PRESETS", "DeepIV", "DeepIVConfig", "FittedDeepIV", "default_preset", "paper_preset"]
