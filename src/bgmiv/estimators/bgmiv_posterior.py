"""BGM-IV: draws of latents and of the structural function as ArviZ data."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bgmiv.errors import ConfigError, MissingExtraError
from bgmiv.estimators.bgmiv_result import FittedBGMIV
from bgmiv.infer.latent_posterior import LatentPosterior, sample_latents
from bgmiv.infer.structural import structural_means

__all__ = ["posterior_data"]


def posterior_data(
    fitted: FittedBGMIV, treatment: Any, covariates: Any, settings: LatentPosterior, member: int = 0
) -> Any:
    """An `arviz.InferenceData` of n rows.

    Args:
        fitted: the fit, completed by `with_uncertainty`.
        treatment: one for all rows or one a row.
        covariates: the rows.
        settings: of the chains.
        member: whose latents and networks.

    Returns:
        Group `posterior` with `latents` (chain, draw, row, latent), drawn from p(z | v); `structural` (chain, draw,
        row), g at these latents under one member, in units of the outcome; and `structural_model` (chain, draw, row),
        g at the fit's own latents under the quasi-posterior of the networks. Group `constant_data` has the treatment
        and each row's R-hat, effective draws, acceptance and divergences.

    Raises:
        MissingExtraError: ArviZ is not installed.
        ConfigError: there is no such member.
    """
    try:
        import arviz
    except ImportError as error:
        raise MissingExtraError("draws are given as ArviZ data: pip install 'bgmiv[arviz]'") from error
    if isinstance(member, bool) or not 0 <= member < len(fitted.members):
        raise ConfigError(f"member must lie between 0 and {len(fitted.members) - 1}, got {member!r}.")
    x, v = fitted.schema.check_query(treatment, covariates)
    scaled, flat = fitted.scaler.treatment.transform(x), fitted.scaled_covariates(v)
    model = fitted.members[member].model
    found = sample_latents(model, flat, settings, jax.random.key(settings.seed))
    n, chains, draws, width = found.draws.shape
    z = np.moveaxis(found.draws, 0, 2).reshape(-1, width)
    values = structural_means(model, np.tile(scaled, chains * draws), z)
    values = fitted.scaler.outcome.inverse(values).reshape(chains, draws, n, *values.shape[1:])
    levels = ["level"] if values.ndim > 3 else []
    return arviz.from_dict(
        posterior={
            "latents": np.moveaxis(found.draws, 0, 2),
            "structural": values,
            "structural_model": _model_draws(fitted, x, v, chains, draws, settings.seed),
        },
        constant_data={
            "treatment": x,
            "rhat": found.rhat,
            "ess": found.ess,
            "acceptance": found.acceptance,
            "divergences": found.divergences,
        },
        dims={
            "latents": ["row", "latent"],
            "structural": ["row", *levels],
            "structural_model": ["row", *levels],
            **{name: ["row"] for name in ("treatment", "rhat", "ess", "acceptance", "divergences")},
        },
        coords={"row": np.arange(n), "latent": _latent_names(fitted)},
    )


def _model_draws(fitted: FittedBGMIV, x: np.ndarray, v: np.ndarray, chains: int, draws: int, seed: int) -> np.ndarray:
    """Gaussian draws of g with the covariance of its sources but for the latents'."""
    asked = v if fitted.schema.blocks else None
    rng = np.random.default_rng(seed)
    values = np.asarray(fitted.predict(_levels(fitted, x), asked), np.float64)
    total = np.broadcast_to(values, (chains, draws, *values.shape)).copy()
    for source in fitted.deviations(_levels(fitted, x), asked):
        if source.name != "latent":
            total += np.tensordot(rng.normal(size=(chains, draws, len(source.deviations))), source.deviations, axes=1)
    return total


def _levels(fitted: FittedBGMIV, x: np.ndarray) -> Any:
    """Treatments as users give them: levels by name."""
    levels = fitted.schema.treatment.levels
    return x if levels is None else np.asarray(levels)[x.astype(np.int64)]


def _latent_names(fitted: FittedBGMIV) -> list[str]:
    layout = fitted.model.layout
    parts = ("shared", "outcome_only", "treatment_only", "nuisance")
    return [f"{name}[{i}]" for name in parts for i in range(getattr(layout, name))]
