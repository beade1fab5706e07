"""What the paper's convolutional modules cost beside dense ones on this machine, as a Markdown table.

    NPROC=1 python benchmarks/image_modules.py

Times are CPU-seconds of one thread, so that other work on the machine matters less. Pictures are scikit-learn's digits
at MNIST's size: arithmetic does not depend on what they show.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from bgmiv.bgm.config import BGMIVConfig, paper_preset, paper_qmc_preset
from bgmiv.bgm.covariates import CovariateConfig, ImageDecoderConfig
from bgmiv.bgm.model import build_model, covariate_log_posterior, encode_rows
from bgmiv.designs import MnistDesign
from bgmiv.nn.features import FeatureConfig
from bgmiv.nn.images import ImageConfig
from bgmiv.training.loop import training_data

BATCHES = 3
REPEATS = 3
# What a fit of the paper at n = 5000 does: iterations, batches of all epochs, and MAP steps of its 2,800 grid points.
ITERATIONS, EPOCHS, ROWS, MAP_STEPS, GRID = 50_001, 201, 5000, 1000, 2800
MODULES = {
    "dense": CovariateConfig(
        features=FeatureConfig(images=ImageConfig(features="dense")), images=ImageDecoderConfig(decoder="dense")
    ),
    "convolutional": CovariateConfig(),
}


def seconds(run: Callable[..., Any], *arguments: Any) -> float:
    """CPU-seconds of one run, the least of a few; compilation is left out."""
    jax.block_until_ready(run(*arguments))
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        jax.block_until_ready(run(*arguments))
        taken.append(time.process_time() - start)
    return min(taken)


def measured(preset: BGMIVConfig, images: CovariateConfig) -> tuple[float, float, float]:
    """Seconds of a warm-start iteration, of a batch of Algorithm 1, and of a MAP step of a batch of rows."""
    data = MnistDesign(images="digits").sample(32 * BATCHES, 0.5, 0)
    model_config = replace(preset.model, covariates=images)
    config = replace(preset, model=model_config).resolve(data.schema, ROWS)
    rows = training_data(config.scaling.fit(data).transform(data), config.alternating.batch_size)
    model = jax.jit(lambda key: build_model(data.schema, 1, config.model, key=key))(jax.random.key(0))
    key = jax.random.key(1)
    start = jax.jit(config.initial.init)(model, key)
    iteration = seconds(jax.jit(config.initial.step), start, rows, key)
    latents = encode_rows(model, rows.rows.v)
    epoch = seconds(jax.jit(config.alternating.step), jax.jit(config.alternating.init)(model, latents), rows, key)

    def loss(z: jax.Array, v: jax.Array) -> jax.Array:
        return -jnp.sum(jax.vmap(covariate_log_posterior, in_axes=(None, 0, 0))(model, v, z))

    return iteration, epoch / BATCHES, seconds(jax.jit(jax.grad(loss)), latents[:32], rows.rows.v[:32])


def main() -> None:
    """Measure and print."""
    columns = "warm-start iteration, ms", "batch of Algorithm 1, ms", "MAP step of 32 rows, ms", "whole fit, h"
    print(f"| preset | modules | {' | '.join(columns)} |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, preset in (("paper-qmc", paper_qmc_preset()), ("paper", paper_preset())):
        found = {}
        for modules, images in MODULES.items():
            iteration, batch, step = measured(preset, images)
            n_batches = EPOCHS * -(-ROWS // 32)
            whole = ITERATIONS * iteration + n_batches * batch + MAP_STEPS * GRID / 32 * step
            found[modules] = (1e3 * iteration, 1e3 * batch, 1e3 * step, whole / 3600.0)
            print(
                f"| {name} | {modules} | " + " | ".join(f"{value:.3g}" for value in found[modules]) + " |", flush=True
            )
        pairs = zip(found["convolutional"], found["dense"], strict=True)
        print(f"| {name} | ratio | " + " | ".join(f"{conv / dense:.1f}" for conv, dense in pairs) + " |", flush=True)


if __name__ == "__main__":
    main()
