"""What the paper's convolutional modules cost on this machine, and how a fit with them learns.

    NPROC=1 python benchmarks/image_modules.py                 the cost, as a Markdown table
    NPROC=1 python benchmarks/image_modules.py curve 1000 0.1  a fit of MNIST-IV with n rows and this share of the steps

The second goes on where it was stopped, writes image_curve.json and draws figures/study-image-curve.png.
Times are CPU-seconds of one thread, so that other work on the machine matters less. Pictures are scikit-learn's digits
at MNIST's size: arithmetic does not depend on what they show.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bgmiv._io import write_whole
from bgmiv.bench import benchmark_config, structural_error
from bgmiv.bgm.config import BGMIVConfig, CovariateConfig, paper_preset, paper_qmc_preset
from bgmiv.bgm.model import build_model, covariate_log_posterior, encode_rows
from bgmiv.designs import MnistDesign, make_design
from bgmiv.effects import predict
from bgmiv.training import training_data
from report.figures import dress_panel, figure_bytes

HERE = Path(__file__).parent
BATCHES = 3
REPEATS = 3
# What a fit of the paper at n = 5000 does: iterations, batches of all epochs, and MAP steps of its 2,800 grid points.
ITERATIONS, EPOCHS, ROWS, MAP_STEPS, GRID = 50_001, 201, 5000, 1000, 2800
# What counts the steps of a phase, and what its losses are.
UNITS = {"EGM warm start": ("iteration", "squared error"), "alternating updates": ("epoch", "negative log density")}


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
    model = build_model(data.schema, 1, config.model, key=jax.random.key(0))
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
        iteration, batch, step = measured(preset, CovariateConfig())
        n_batches = EPOCHS * -(-ROWS // 32)
        whole = ITERATIONS * iteration + n_batches * batch + MAP_STEPS * GRID / 32 * step
        costs = (1e3 * iteration, 1e3 * batch, 1e3 * step, whole / 3600.0)
        print(f"| {name} | convolutional | " + " | ".join(f"{value:.3g}" for value in costs) + " |", flush=True)


def curve(n: int, share: float) -> None:
    """A fit under the paper's settings with a share of its iterations, epochs and MAP steps, and its losses."""
    config = benchmark_config("mnist", "bgm-iv", "paper-qmc")
    config = replace(
        config,
        initial=replace(config.initial, iterations=round(share * config.initial.iterations)),
        alternating=replace(config.alternating, epochs=round(share * config.alternating.epochs), chunk=1),
        latents=replace(config.latents, steps=round(share * config.latents.steps)),
        checkpoint=str(HERE / ".image-curve"),
    )
    design = make_design("mnist")
    grid, start = design.grid(), time.process_time()
    fitted = config.fit(design.sample(n, 0.5, 1), 1)
    error = structural_error(predict(fitted, grid.treatment, grid.covariates), grid).all / 1e4
    found = {
        "n": n,
        "share": share,
        "structural_mse_1e4": error,
        "cpu_seconds_of_this_run": round(time.process_time() - start, 1),
        "history": [[row.phase, row.step, dict(row.metrics)] for row in fitted.history],
    }
    write_whole(HERE / "image_curve.json", (json.dumps(found, indent=1) + "\n").encode())
    write_whole(HERE / "figures" / "study-image-curve.png", figure_bytes(drawn(found)))
    print(f"structural MSE / 1e4: {error:.3f} after {share:g} of the paper's steps at n = {n}")


def drawn(found: dict[str, Any]) -> Figure:
    """The losses of both phases by step."""
    phases = list(dict.fromkeys(phase for phase, _, _ in found["history"]))
    figure = Figure(figsize=(4.2 * len(phases), 3.2), layout="constrained")
    for panel, phase in zip(figure.subplots(1, len(phases), squeeze=False)[0], phases, strict=True):
        rows = [(step, metrics) for name, step, metrics in found["history"] if name == phase]
        for part in ("covariates", "treatment", "outcome"):
            panel.plot([step for step, _ in rows], [metrics[part] for _, metrics in rows], ".-", label=part)
        dress_panel(panel, phase)
        panel.set_xlabel(UNITS[phase][0])
        panel.set_ylabel(UNITS[phase][1])
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panel.legend(frameon=False, fontsize=8)
    figure.suptitle(f"MNIST-IV, n = {found['n']}, {found['share']:g} of the paper's steps", fontsize=10)
    return figure


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            main()
        case ["curve", n, share]:
            curve(int(n), float(share))
        case _:
            raise SystemExit(__doc__)
