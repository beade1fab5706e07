"""Check the latent posterior's samplers by simulation, and what they cost; writes latent_calibration.md.

python benchmarks/latent_calibration.py

A row's latents are drawn from the prior and its covariates from the model; the latents' rank among draws of their
posterior is then uniform, for a right sampler and for no other (Talts, Betancourt, Simpson, Vehtari, Gelman 2018,
Validating Bayesian inference algorithms with simulation-based calibration, arXiv:1804.06788).
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "1")

import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.stats import chisquare

from bgmiv.covariates import CovariateConfig
from bgmiv.data import IVData
from bgmiv.designs import DemandDesign
from bgmiv.errors import BGMIVWarning
from bgmiv.estimators.bgmiv import BGMIV
from bgmiv.infer.latent_posterior import LatentDraws, LatentPosterior, sample_latents
from bgmiv.model import BGMIVModel, LatentLayout, ModelConfig, build_model

PAGE = Path(__file__).resolve().with_suffix(".md")
SIMULATIONS, BINS, RANKED = 512, 20, 99
TREATMENTS = jnp.asarray([0.0, 1.0])


@dataclass(frozen=True)
class Case:
    """A fixed generator of covariates, drawn at random."""

    name: str
    layout: LatentLayout
    continuous: int = 0
    vector: int = 0
    discrete: bool = False
    deviation: float = 0.05

    def model(self) -> BGMIVModel:
        """Networks with bends near every latent state and a noise that differs from place to place."""
        rng, n = np.random.default_rng(0), 12
        covariates = {f"c{i}": rng.normal(size=n) for i in range(self.continuous)}
        if self.vector:
            covariates["proxy"] = rng.normal(size=(n, self.vector))
        if self.discrete:
            covariates |= {"member": np.arange(n) % 2, "region": np.arange(n) % 3}
        data = IVData.from_arrays(
            *rng.normal(size=(2, n)),
            instruments=rng.normal(size=n),
            covariates=covariates,
            blocks={"member": "binary", "region": "categorical"} if self.discrete else None,
        )
        hidden = CovariateConfig(
            dense_hidden=(32, 32), vector_decoder_hidden=(32,), column_decoder_hidden=(32,), block_reduction="sum"
        )
        drawn = build_model(data.schema, 1, ModelConfig(self.layout, covariates=hidden), key=jax.random.key(1))
        decoder = jax.tree.map(
            lambda leaf: 1.5 * leaf if leaf.ndim == 2 else jnp.asarray(rng.normal(0.0, 0.5, leaf.shape), leaf.dtype),
            drawn.covariates.decoder,
        )
        return with_deviation(eqx.tree_at(lambda m: m.covariates.decoder, drawn, decoder), self.deviation)


def with_deviation(model: BGMIVModel, deviation: float) -> BGMIVModel:
    """The model whose Gaussian blocks have about this deviation; it still differs from place to place."""
    raw = float(np.log(np.expm1(deviation**2)))
    for i, branch in enumerate(model.covariates.branches):
        if hasattr(branch.head, "variance"):
            # Where means and spreads have heads of their own, spreads are the last; else the last of one head.
            model = eqx.tree_at(
                lambda m, i=i: m.covariates.decoder.nets[i].outputs[-1].bias,
                model,
                replace_fn=lambda bias, n=branch.head.dim: bias.at[-n:].set(raw),
            )
    return model


def simulated(model: BGMIVModel, key: Array, n: int) -> tuple[Array, np.ndarray]:
    """Latents and covariates of n rows."""
    key_z, key_v = jax.random.split(key)
    z = model.layout.sample_prior(key_z, n)

    def covariates(z: Array, key: Array) -> Array:
        raws = model.covariates.decode(z)
        keys = jax.random.split(key, len(raws))
        heads = [branch.head for branch in model.covariates.branches]
        return jnp.concatenate([head.sample(raw, k, 1)[0] for head, raw, k in zip(heads, raws, keys, strict=True)])

    return z, np.asarray(jax.jit(jax.vmap(covariates))(z, jax.random.split(key_v, n)))


def timed(model: BGMIVModel, v: np.ndarray, config: LatentPosterior, of: Callable[[Array], Array] | None = None):
    """Draws, and the CPU-seconds they took beside compilation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BGMIVWarning)
        sample_latents(model, v, config, jax.random.key(0), of)
        began = time.process_time()
        draws = sample_latents(model, v, config, jax.random.key(2), of)
    return draws, time.process_time() - began


def quantities(model: BGMIVModel, v: Array, z: Array) -> Array:
    """What is ranked: every latent, the likelihood, and the structural mean at two treatments."""
    means = jax.vmap(model.structural_mean, (0, None))(TREATMENTS, z)
    return jnp.concatenate([z, model.covariates.log_prob(v, z)[None], means])


def ranked(model: BGMIVModel, z: Array, v: np.ndarray, drawn: LatentDraws) -> np.ndarray:
    """Ranks from 0 to 99 of each row's quantities among draws far apart, `(n, quantities)`."""
    pooled = drawn.draws.reshape(len(v), -1, z.shape[1])
    few = pooled[:, np.linspace(0, pooled.shape[1] - 1, RANKED).round().astype(int)]
    both = jax.jit(
        lambda z, few: (
            jax.vmap(lambda v, z: quantities(model, v, z))(v, z),
            jax.vmap(lambda v, few: jax.vmap(lambda z: quantities(model, v, z))(few))(v, few),
        )
    )
    true, others = (np.asarray(part) for part in both(z, few))
    return np.sum(others < true[:, None], axis=1)


def calibration(case: Case, sampler: str, factor: float = 1.0) -> str:
    """A line of the table; the sampler believes in the case's noise times `factor`."""
    truth = case.model()
    assumed = with_deviation(truth, factor * case.deviation)
    z, v = simulated(truth, jax.random.key(7), SIMULATIONS)
    drawn, seconds = timed(assumed, v, LatentPosterior(sampler))
    ranks = ranked(assumed, z, v, drawn)
    counts = [np.histogram(column, BINS, (-0.5, RANKED + 0.5))[0] for column in ranks.T]
    p_values = np.asarray([chisquare(count).pvalue for count in counts])
    within = np.mean((ranks >= 5) & (ranks < 95))
    cells = [
        case.name + (f", noise assumed {factor:g} times as large" if factor != 1 else ""),
        sampler,
        case.layout.dim,
        v.shape[1],
        f"{p_values.min():.2g} of {len(p_values)}",
        f"{min(1.0, p_values.min() * len(p_values)):.2g}",
        f"{within:.3f}",
        f"{np.mean(drawn.rhat > 1.01):.3f}",
        f"{np.median(drawn.ess):.0f}",
        f"{seconds:.0f}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def cost(n_rows: int = 32) -> list[str]:
    """Both samplers on a trained model."""
    data = DemandDesign().sample(1000, 0.5, 0)
    # A small fit of the paper's latent sizes: the cost of a draw is what is measured, not the fit.
    estimator = BGMIV(latent_layout=(2, 2, 1, 2), members=1, warm_start_iterations=2000, random_state=0)
    fitted = estimator._config().fit(data, jax.random.key(0))
    model = fitted.members[0].model
    v = fitted.scaler.covariates.transform(data.covariates[:n_rows])

    def curve(z: Array) -> Array:
        return jax.vmap(model.structural_mean, (0, None))(jnp.linspace(-2.0, 2.0, 5), z)

    lines = []
    for config in (LatentPosterior(), LatentPosterior("nuts", n_warmup=300)):
        drawn, seconds = timed(model, v, config, curve)
        cells = [
            config.sampler,
            f"{seconds:.1f}",
            f"{drawn.acceptance.mean():.2f}",
            f"{drawn.divergences.sum() / drawn.draws[..., 0].size:.4f}",
            *(f"{np.mean(rhat > 1.01):.2f} (up to {rhat.max():.3f})" for rhat in (drawn.rhat, drawn.rhat_of)),
            *(f"{ess.sum() / seconds:,.0f}" for ess in (drawn.ess, drawn.ess_of)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines


FIBRES = Case("fibres", LatentLayout(2, 2, 1, 2), continuous=2, deviation=0.02)
CASES: tuple[tuple[Case, str, float], ...] = (
    (FIBRES, "lifted", 1.0),
    (Case("wide fibres", LatentLayout(8, 8, 2, 2), continuous=2), "lifted", 1.0),
    (Case("more covariates than latents", LatentLayout(2, 1, 1, 1), continuous=8, deviation=0.2), "lifted", 1.0),
    (Case("blocks of four kinds", LatentLayout(1, 1, 1, 1), 1, 4, True, 0.2), "lifted", 1.0),
    (Case("blocks of four kinds", LatentLayout(1, 1, 1, 1), 1, 4, True, 0.2), "nuts", 1.0),
    (FIBRES, "lifted", 2.0),
)


def main() -> None:
    """Run everything and write the page."""
    lines = []
    for case, sampler, factor in CASES:
        lines.append(calibration(case, sampler, factor))
        print(lines[-1], flush=True)
    costs = cost()
    defaults = replace(LatentPosterior())
    PAGE.write_text(
        f"""# Are draws from the latent posterior right?

Written by `python benchmarks/latent_calibration.py` with one thread on {platform.system()} and Python
{platform.python_version()}.

## Simulation-based calibration

{SIMULATIONS} rows a line. Latents come from the prior and covariates from a fixed random network with bends and a noise that
differs from place to place (deviation about 0.02 in `fibres`, 0.05 to 0.2 elsewhere). The rank of each latent, of the
likelihood and of the structural mean at two treatments among {RANKED} posterior draws should be uniform: p-values are of
chi-squared tests with {BINS} bins. The middle 90 of 100 ranks should hold 0.9 of the rows. Settings are the defaults
({defaults.n_chains} chains of {defaults.n_draws} draws after {defaults.n_warmup}). The last line must fail: there the sampler is given twice the noise.

| generator | sampler | latents | columns | smallest p | times their number | in the middle 0.9 | R-hat > 1.01 | median effective draws | CPU s |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(lines)}

R-hat and effective draws are the worst of a row's latents.

## What they cost

A model trained on the demand design (n = 1000, 2000 warm-start iterations, seven latents, two covariates), 32 of its rows;
"curve" is the structural mean at five treatments. Effective draws are the worst of a row, added up over rows. Compilation
is left out. NUTS warms up for 300 draws.

| sampler | CPU s | acceptance | divergences a draw | rows with R-hat > 1.01: latents | curve | effective draws a CPU s: latents | curve |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(costs)}
"""
    )


if __name__ == "__main__":
    main()
