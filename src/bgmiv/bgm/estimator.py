"""BGM-IV: the estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bgmiv.bgm.config import PRESETS, BGMIVConfig, Ensemble, LatentLayout, LatentMap, LatentPosterior, whole_number
from bgmiv.bgm.last_stage import FittedBGMIV, FittedWithoutNetworks
from bgmiv.data.query import Query, query_at
from bgmiv.data.scaling import RoleScaling
from bgmiv.effects import estimate_at
from bgmiv.errors import ConfigError, MissingExtraError
from bgmiv.estimators.base import SeededEstimator
from bgmiv.estimators.fitted import chosen_preset
from bgmiv.integrate import IntegrationRule, ResidualNodes

if TYPE_CHECKING:
    from bgmiv.bgm.fitted import FittedNetworks

__all__ = ["BGMIV", "PRESETS", "BGMIVConfig", "FittedBGMIV"]

_LATENT_RULES: dict[str, LatentMap | LatentPosterior] = {
    "encoder": LatentMap(steps=0),
    "map": LatentMap(steps=1000, learning_rate=1e-2),
    "posterior": LatentPosterior(),
}


@dataclass(eq=False, repr=False, kw_only=True)
class BGMIV(SeededEstimator):
    """Bayesian generative modelling for instrumental-variable regression.

    Args:
        preset: "default", "paper" (appendix B of the paper), or "paper-qmc" (the same with a cheaper integral). For
            ablations: "paper-qmc-no-egm", without the warm start, and "paper-qmc-egm0", with one iteration of it, as in
            the authors' code.
        networks: whether networks are trained. "auto": only where left-out rows do not say that a line or a sieve
            leaves nothing for them, or where there is a wide vector block or an image; the verdict says which. True:
            always; the last stage then decides what of them is used. False: never. The arguments below are theirs.
        latent_layout: sizes of the shared, outcome-only, treatment-only and nuisance latents.
        batch_size: rows a mini-batch in both phases.
        members: models trained; the estimate is their average.
        held_out: share of the rows that each member leaves out, in whole groups, to stop in time and to judge the fit.
            By default 1 / `members` where there is a last stage, which needs every row left out by a member; 0 leaves
            out none, and the last stage with them, so that the networks alone are the estimate.
        iterations: steps of the initial phase (joint training, or the paper's EGM warm start).
        epochs: passes of alternating updates, which the default leaves out; not how long networks train, which is
            `iterations`.
        integration: rule of the IV integral in the alternating phase, which runs if `epochs` is above 0.
        latents: how latents are found from covariates at prediction: "encoder"; "map", the mode of p(z | v); or
            "posterior", which averages the structural function over draws of p(z | v).
        scaling: how each role is scaled.
        use_instrument: False gives the no-instrument version.
        treatment_kind: "auto", "continuous", "binary" or "categorical", as in `IVData.from_arrays`.
        outcome_kind: the same for the outcome.
        covariance: what standard errors and tests allow for: "auto", "classical", "robust" or "cluster", as in
            `IVData.from_arrays`.
        checkpoint: folder that keeps an unfinished fit; after an interruption the same call goes on from there.
        random_state: the seed; None draws one and keeps it in `seed_`.
        progress: show progress bars; None shows them in notebooks only.

    Arguments left at None take the preset's value.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 400))
        >>> x = w + v + u
        >>> y = 2 * x + v - u
        >>> model = BGMIV(random_state=0)
        >>> model.fit(y, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)
    """

    fitted_class = FittedWithoutNetworks

    preset: Literal["default", "paper", "paper-qmc", "paper-qmc-no-egm", "paper-qmc-egm0"] = "default"
    networks: Literal["auto"] | bool = "auto"
    latent_layout: tuple[int, int, int, int] | None = None
    batch_size: int | None = None
    members: int | None = None
    held_out: float | None = None
    iterations: int | None = None
    epochs: int | None = None
    integration: IntegrationRule | None = None
    latents: Literal["encoder", "map", "posterior"] | None = None
    scaling: RoleScaling | None = None
    checkpoint: str | Path | None = None

    @classmethod
    def _saved_classes(cls, fitted: str) -> tuple[type, ...]:
        if fitted == cls.fitted_class.__name__:
            return (cls, cls.fitted_class)
        from bgmiv.bgm.covariates import ConvDecoder, OwnLatents
        from bgmiv.bgm.fitted import FittedNetworks
        from bgmiv.nn.layers import MLP

        return (cls, FittedNetworks, MLP, ConvDecoder, OwnLatents, ResidualNodes)

    def posterior(
        self,
        treatment: Any,
        covariates: Any = None,
        *,
        draws: int = 500,
        chains: int = 4,
        warmup: int = 150,
        member: int = 0,
        seed: int = 0,
    ) -> Any:
        """Draws as ArviZ data: latents given covariates, and the structural function under each source of uncertainty.

        Latents are drawn by BlackJAX's NUTS. `pip install 'pybgmiv[arviz]'`.

        Args:
            treatment: one for all rows or one a row.
            covariates: the rows asked about; a few dozen, since each has its own chains.
            draws, chains, warmup: of the chains of each row.
            member: whose latents and networks.
            seed: the randomness.

        Returns:
            An `arviz.InferenceData`. Group `posterior` has `latents` (chain, draw, row, latent), drawn from p(z | v);
            `structural` (chain, draw, row), g at these latents under one member, in units of the outcome; and
            `structural_model` (chain, draw, row), g at the fit's own latents under the quasi-posterior of the networks,
            of which intervals are made. Group `constant_data` has the treatment and each row's R-hat, effective draws,
            acceptance and divergences.

        Raises:
            MissingExtraError: ArviZ is not installed.
            ConfigError: there is no such member, networks were not trained, or the latents are the covariates
                themselves, as in the default preset without wide blocks.

        Warns:
            BGMIVWarning: chains have not converged (R-hat above 1.01, or too few effective draws).
        """
        fitted = self._fitted()
        if isinstance(fitted, FittedWithoutNetworks):
            raise ConfigError(
                "networks were not trained, and without them there are no latents to draw. Fit "
                "BGMIV(networks=True), or ask for intervals of the estimate itself, such as effect_interval()."
            )
        from bgmiv.bgm.fitted import FittedNetworks
        from bgmiv.bgm.latents import check_sampled

        assert isinstance(fitted, FittedNetworks)
        if isinstance(member, bool) or not 0 <= member < fitted.n_members:
            raise ConfigError(f"member must lie between 0 and {fitted.n_members - 1}, got {member!r}.")
        settings = LatentPosterior(chains, warmup, draws, seed=seed)
        check_sampled(fitted.model, settings)
        return _arviz_data(fitted, query_at(fitted.schema, treatment, self._read(covariates)), settings, member)

    def _config(self) -> BGMIVConfig:
        config = chosen_preset(PRESETS, self.preset)

        def count(name: str, minimum: int, preset: Any) -> Any:
            value = getattr(self, name)
            return preset if value is None else whole_number(name, value, minimum)

        if self.integration is not None and not hasattr(self.integration, "nodes"):
            raise ConfigError(f"integration must be a rule such as GaussHermite(8), got {self.integration!r}.")
        if self.scaling is not None and not isinstance(self.scaling, RoleScaling):
            raise ConfigError(f"scaling must be a RoleScaling, got {self.scaling!r}.")
        if self.latents is not None and self.latents not in _LATENT_RULES:
            raise ConfigError(f"latents is 'encoder', 'map' or 'posterior', got {self.latents!r}.")
        if self.checkpoint is not None and self.random_state is None:
            raise ConfigError("a checkpoint needs a random_state: without a fixed seed no two fits are the same.")
        initial, alternating = config.initial, config.alternating
        integration, epochs = self.integration or alternating.integration, count("epochs", 0, alternating.epochs)
        ensemble = self._ensemble(config, count("members", 1, config.ensemble.members))
        config = replace(
            config,
            networks=self.networks,
            layout=self._layout(),
            batch_size=count("batch_size", 2, config.batch_size),
            scaling=self.scaling or config.scaling,
            ensemble=ensemble,
            initial=replace(initial, iterations=count("iterations", 0, initial.iterations)),
            alternating=replace(alternating, epochs=epochs, integration=integration),
            latents=config.latents if self.latents is None else _LATENT_RULES[self.latents],
            last_stage=config.last_stage if ensemble.held_out else None,
            checkpoint=None if self.checkpoint is None else str(self.checkpoint),
        )
        return config if self.use_instrument else config.without_instrument()

    def _layout(self) -> LatentLayout | None:
        if self.latent_layout is None:
            return None
        try:
            return LatentLayout(*self.latent_layout)
        except TypeError:
            raise ConfigError(
                "latent_layout holds four sizes (shared, outcome-only, treatment-only, nuisance), got "
                f"{self.latent_layout}."
            ) from None

    def _ensemble(self, config: BGMIVConfig, members: int) -> Ensemble:
        held_out = self.held_out
        if held_out is None:
            # The last stage needs every row left out by some member; one alone cannot, which the fit refuses.
            by_all = config.last_stage is not None and members > 1
            return Ensemble(members, 1.0 / members if by_all else config.ensemble.held_out)
        if isinstance(held_out, bool) or not isinstance(held_out, int | float | np.number):
            raise ConfigError(f"held_out must be a share of the rows such as 0.1, got {held_out!r}.")
        return Ensemble(members, float(held_out))


def _arviz_data(fitted: FittedNetworks, query: Query, settings: LatentPosterior, member: int) -> Any:
    try:
        import arviz
    except ImportError as error:
        raise MissingExtraError("draws are given as ArviZ data: pip install 'pybgmiv[arviz]'") from error

    import jax

    from bgmiv.bgm.latents import sample_latents, structural_means

    x, model = query.treatment[0], fitted.members[member].model
    v = fitted.scaled_covariates(query.rows.covariates)
    sampled = sample_latents(model, v, settings, jax.random.key(settings.seed))
    rows = {"treatment": x, **sampled._asdict()}
    latents = np.moveaxis(rows.pop("draws"), 0, 2)
    chains, draws, n, width = latents.shape
    scaled = np.tile(fitted.scaler.treatment.transform(x), chains * draws)
    values = fitted.scaler.outcome.inverse(structural_means(model, scaled, latents.reshape(-1, width)))
    values = values.reshape(chains, draws, n, *values.shape[1:])
    levels = ["level"] if values.ndim > 3 else []
    names = [
        f"{name.replace('-', '_')}[{i}]"
        for name, part in model.layout.parts.items()
        for i in range(part.stop - part.start)
    ]
    structural = {"structural": values, "structural_model": _model_draws(fitted, query, chains, draws, settings.seed)}
    return arviz.from_dict(
        posterior={"latents": latents, **structural},
        constant_data=rows,
        dims={
            "latents": ["row", "latent"],
            **{name: ["row", *levels] for name in structural},
            **{name: ["row"] for name in rows},
        },
        coords={"row": np.arange(n), "latent": names},
    )


def _model_draws(fitted: FittedNetworks, query: Query, chains: int, draws: int, seed: int) -> np.ndarray:
    """Gaussian draws of g with the covariance of the sources of its pointwise intervals but for the latents'."""
    rng = np.random.default_rng(seed)
    estimate = estimate_at(fitted, query, intervals=True).pointwise().without("latent")
    values = estimate.values[0]
    total = np.broadcast_to(values, (chains, draws, *values.shape)).copy()
    for source in estimate.sources:
        total += np.tensordot(rng.normal(size=(chains, draws, len(source.factors))), source.factors[:, 0], axes=1)
    return total
