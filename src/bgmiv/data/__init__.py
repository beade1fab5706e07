"""The data boundary: reading, validating and scaling what the user brings."""

from __future__ import annotations

from bgmiv.data.blocks import BlockKind, BlockSpec, CovariateBlock
from bgmiv.data.files import read_table
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import Affine, FixedAffine, Identity, RoleScaling, Standardise
from bgmiv.data.schema import Schema

__all__ = [
    "Affine",
    "BlockKind",
    "BlockSpec",
    "CovariateBlock",
    "FixedAffine",
    "IVData",
    "Identity",
    "RoleScaling",
    "Schema",
    "Standardise",
    "read_table",
]
