"""The data boundary: reading, validating and scaling what the user brings."""

from __future__ import annotations

from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import (
    Affine,
    FixedAffine,
    Identity,
    RoleScaling,
    Rule,
    ScaledData,
    Scaler,
    Standardise,
)
from bgmiv.data.schema import BlockKind, BlockSpec, CovariateBlock, Schema, Variable

__all__ = [
    "Affine",
    "BlockKind",
    "BlockSpec",
    "CovariateBlock",
    "FixedAffine",
    "IVData",
    "Identity",
    "RoleScaling",
    "Rule",
    "ScaledData",
    "Scaler",
    "Schema",
    "Standardise",
    "Variable",
]
