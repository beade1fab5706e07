"""Inference after training: latents from covariates, and the structural function."""

from bgmiv.infer.latent_map import LatentMap, infer_latents
from bgmiv.infer.structural import latents_of, structural_means

__all__ = ["LatentMap", "infer_latents", "latents_of", "structural_means"]
