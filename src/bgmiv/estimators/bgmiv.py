"""BGM-IV: the estimator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from bgmiv.data.checks import warn_user
from bgmiv.data.formulas import FormulaReader
from bgmiv.data.roles import RoleKind
from bgmiv.data.scaling import RoleScaling
from bgmiv.errors import BGMIVError, ConfigError, ModelFileError
from bgmiv.estimators.base import IVEstimator, chosen_preset
from bgmiv.estimators.bgmiv_fit import BGMIVConfig
from bgmiv.estimators.bgmiv_presets import (
    PRESETS,
    default_no_egm_preset,
    default_preset,
    paper_preset,
    paper_qmc_no_egm_preset,
    paper_qmc_preset,
    without_instrument,
)
from bgmiv.estimators.bgmiv_result import FittedBGMIV, LatentAverage
from bgmiv.infer import LatentMap
from bgmiv.integrate import IntegrationRule
from bgmiv.model import LatentLayout
from bgmiv.train.ensemble import Ensemble
from bgmiv.trust.verdict import Verdict

__all__ = [
    "BGMIV",
    "PRESETS",
    "BGMIVConfig",
    "FittedBGMIV",
    "default_no_egm_preset",
    "default_preset",
    "paper_preset",
    "paper_qmc_no_egm_preset",
    "paper_qmc_preset",
    "without_instrument",
]


class BGMIV(IVEstimator):
    """Bayesian generative modelling for instrumental-variable regression.

    Args:
        preset: "default", "paper" (appendix B of the paper), or "paper-qmc" (the same with a cheaper integral). For
            ablations: "default-no-egm" and "paper-qmc-no-egm", without the warm start.
        latent_layout: sizes of the shared, outcome-only, treatment-only and nuisance latents.
        batch_size: rows a mini-batch in both phases.
        members: models trained; the estimate is their average.
        held_out: share of the rows that each member leaves out, to stop in time and to judge the fit.
        warm_start_iterations: iterations of the warm start.
        epochs: passes of alternating updates.
        integration: rule of the IV integral in the alternating phase, which runs if `epochs` is above 0.
        latents: how latents are found from covariates at prediction: "encoder"; "map", the mode of p(z | v); or
            "posterior", which averages the structural function over draws of p(z | v).
        scaling: how each role is scaled.
        use_instrument: False gives the no-IV twin.
        bootstrap: train every member on rows weighed by chance (the Bayesian bootstrap, of whole groups where there are
            groups); intervals then come from the spread of the members, of which there should be 20 or more.
        treatment_kind: "auto", "continuous", "binary" or "categorical", as in `IVData.from_arrays`.
        outcome_kind: the same for the outcome.
        checkpoint: folder that keeps an unfinished fit; after an interruption the same call goes on from there.
        random_state: the seed; None draws one and keeps it in `seed_`.
        progress: show progress bars on the terminal.

    Arguments left at None take the preset's value.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 200))
        >>> x = w + v + u
        >>> y = 2 * x + v - u
        >>> model = BGMIV(warm_start_iterations=20, epochs=2, random_state=0)
        >>> model.fit(y, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)
    """

    def __init__(
        self,
        preset: Literal["default", "paper", "paper-qmc", "default-no-egm", "paper-qmc-no-egm"] = "default",
        *,
        latent_layout: tuple[int, int, int, int] | None = None,
        batch_size: int | None = None,
        members: int | None = None,
        held_out: float | None = None,
        warm_start_iterations: int | None = None,
        epochs: int | None = None,
        integration: IntegrationRule | None = None,
        latents: Literal["encoder", "map", "posterior"] | None = None,
        scaling: RoleScaling | None = None,
        use_instrument: bool = True,
        bootstrap: bool = False,
        treatment_kind: RoleKind = "auto",
        outcome_kind: RoleKind = "auto",
        checkpoint: str | Path | None = None,
        random_state: int | None = None,
        progress: bool = False,
    ) -> None:
        """Store the arguments; they are checked by `fit`."""
        self.preset = preset
        self.latent_layout = latent_layout
        self.batch_size = batch_size
        self.members = members
        self.held_out = held_out
        self.warm_start_iterations = warm_start_iterations
        self.epochs = epochs
        self.integration = integration
        self.latents = latents
        self.scaling = scaling
        self.use_instrument = use_instrument
        self.bootstrap = bootstrap
        self.treatment_kind = treatment_kind
        self.outcome_kind = outcome_kind
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.progress = progress

    @property
    def verdict_(self) -> Verdict:
        """Whether held-out rows speak for or against the fit ("good", "doubtful" or "failed"), and why."""
        fitted = self._fitted()
        assert isinstance(fitted, FittedBGMIV)
        return fitted.verdict

    def posterior(
        self,
        treatment: Any,
        covariates: Any = None,
        *,
        draws: int = 500,
        chains: int = 4,
        warmup: int = 150,
        sampler: Literal["lifted", "nuts"] = "lifted",
        member: int = 0,
        seed: int = 0,
    ) -> Any:
        """Draws as ArviZ data: latents given covariates, and the structural function under each source of uncertainty.

        `latents` are drawn from p(z | v) by Markov chains, `structural` is g at them; `structural_model` is g under the
        quasi-posterior of the networks, which intervals are made of. `pip install 'bgmiv[arviz]'`.

        Args:
            treatment: one for all rows or one a row.
            covariates: the rows asked about; a few dozen, since each has its own chains.
            draws, chains, warmup: of the chains of each row.
            sampler: "lifted" or "nuts" (BlackJAX's).
            member: whose latents.
            seed: the randomness.

        Warns:
            BGMIVWarning: chains have not converged (R-hat above 1.01, or too few effective draws).
        """
        from bgmiv.estimators.bgmiv_posterior import posterior_data
        from bgmiv.infer.latent_posterior import LatentPosterior

        fitted = self._completed()
        assert isinstance(fitted, FittedBGMIV)
        settings = LatentPosterior(sampler, chains, warmup, draws, seed=seed)
        return posterior_data(fitted, *self._asked(treatment, covariates), settings, member)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Save the fit in a folder of its own: `model.json` and `arrays.safetensors`.

        A saved model predicts what this one does, to the last bit on the same machine. It holds no rows of the data,
        and not the latents of the training rows: `training_latents` of a loaded fit has none. Names of columns and
        levels, means and deviations are in it, and how covariates are read from tables: a formula's terms with what
        their transforms have learnt. A formula that cannot be kept exactly (`bs` with bounds of its own, say) is left
        out with a warning; a loaded model then takes covariates by the names of its terms.

        Args:
            folder: written as a whole, or not at all.
            overwrite: replace a saved model that is there; a folder with anything else in it is never touched.

        Raises:
            NotFittedError: there is no fit yet.
            ModelFileError: the folder cannot be written or may not be replaced, or a setting is not one of bgmiv's own
                (an integration rule of yours, say).

        Example:
            >>> import tempfile, numpy as np
            >>> rng = np.random.default_rng(0)
            >>> w, v, u = rng.normal(size=(3, 100))
            >>> model = BGMIV(warm_start_iterations=5, members=1, held_out=0.0, random_state=0)
            >>> _ = model.fit(w + v - u, w + v + u, instruments=w, covariates=v)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     model.save(f"{folder}/fit")
            ...     again = BGMIV.load(f"{folder}/fit")
            >>> np.array_equal(model.predict(0.5, v), again.predict(0.5, v))
            True
        """
        fitted = self._fitted()
        assert isinstance(fitted, FittedBGMIV)
        from bgmiv.data.formula_files import formula_file
        from bgmiv.estimators.bgmiv_document import Parameters
        from bgmiv.estimators.bgmiv_files import save_fit

        reader = getattr(self, "reader_", None)
        kept = formula_file(reader) if isinstance(reader, FormulaReader) else reader
        if reader is not None and kept is None:
            names = ", ".join(repr(name) for name in fitted.schema.covariate_names[:10])
            warn_user(f"the formula's computed terms are not saved: a loaded model takes covariates named {names}.")

        arguments = self.get_params()
        del arguments["checkpoint"]
        completed = self._completed()
        assert isinstance(completed, FittedBGMIV)
        analysis = getattr(self, "analysis_", None)
        parameters = Parameters(**arguments)
        save_fit(folder, completed, parameters, self.seed_, kept, analysis=analysis, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open a fit that `save` has written, by whomever.

        Nothing in the folder is run, imported by its name, unpacked, or followed out of the folder; every name, size,
        type and number is checked first, and the terms of a formula are what a typed one may compute. That it opens
        says nothing about who fitted it, and on what.

        Args:
            folder: the folder.

        Returns:
            A fitted `BGMIV` with the arguments it was made with, except `checkpoint`, which is None.

        Raises:
            ModelFileError: the folder holds no saved model, a damaged one, or one of a newer bgmiv.
        """
        from bgmiv.estimators.bgmiv_files import load_fit

        saved = load_fit(folder)
        model = cls(**vars(saved.parameters))
        try:
            model._config()
            model._seed()
        except BGMIVError as error:
            raise ModelFileError(f"{folder}: the saved arguments are refused: {error}") from error
        model.fitted_, model.seed_, model.reader_, model.data_ = saved.fitted, saved.seed, saved.reader, None
        if saved.analysis is not None:
            model.analysis_ = saved.analysis
        return model

    def _config(self) -> BGMIVConfig:
        config = chosen_preset(PRESETS, self.preset)
        warm, alternating = config.warm_start, config.alternating
        if self.warm_start_iterations is not None:
            iterations = _whole("warm_start_iterations", self.warm_start_iterations, 0)
            warm = replace(warm, iterations=iterations)
        if self.epochs is not None:
            alternating = replace(alternating, epochs=_whole("epochs", self.epochs, 0))
        if self.integration is not None:
            if not hasattr(self.integration, "nodes"):
                raise ConfigError(f"integration must be a rule such as GaussHermite(8), got {self.integration!r}.")
            alternating = replace(alternating, integration=self.integration)
        if self.batch_size is not None:
            config = replace(config, batch_size=_whole("batch_size", self.batch_size, 2))
        if self.latents is not None:
            config = replace(config, latent_map=self._latent_rule())
        if self.scaling is not None:
            if not isinstance(self.scaling, RoleScaling):
                raise ConfigError(f"scaling must be a RoleScaling, got {self.scaling!r}.")
            config = replace(config, scaling=self.scaling)
        config = replace(
            config,
            layout=self._layout() or config.layout,
            ensemble=self._ensemble(config.ensemble),
            warm_start=warm,
            alternating=alternating,
        )
        if self.checkpoint is not None:
            if self.random_state is None:
                raise ConfigError("a checkpoint needs a random_state: without a fixed seed no two fits are the same.")
            config = replace(config, checkpoint=str(self.checkpoint))
        return config if self.use_instrument else without_instrument(config)

    def _ensemble(self, ensemble: Ensemble) -> Ensemble:
        if self.members is not None:
            ensemble = replace(ensemble, members=_whole("members", self.members, 1))
        ensemble = replace(ensemble, bootstrap=bool(self.bootstrap))
        if self.held_out is None:
            return ensemble
        if isinstance(self.held_out, bool) or not isinstance(self.held_out, int | float | np.number):
            raise ConfigError(f"held_out must be a share of the rows such as 0.1, got {self.held_out!r}.")
        return replace(ensemble, held_out=float(self.held_out))

    def _latent_rule(self) -> LatentMap | LatentAverage:
        if self.latents == "encoder":
            return LatentMap(steps=0)
        if self.latents == "map":
            return LatentMap(steps=1000, learning_rate=1e-2)
        if self.latents == "posterior":
            from bgmiv.infer.latent_posterior import LatentPosterior

            return LatentPosterior()
        raise ConfigError(f"latents is 'encoder', 'map' or 'posterior', got {self.latents!r}.")

    def _layout(self) -> LatentLayout | None:
        if self.latent_layout is None:
            return None
        sizes = tuple(self.latent_layout) if isinstance(self.latent_layout, Iterable) else (self.latent_layout,)
        if len(sizes) != 4:
            raise ConfigError(
                f"latent_layout holds four sizes (shared, outcome-only, treatment-only, nuisance), got {sizes}."
            )
        try:
            return LatentLayout(*sizes)
        except ConfigError as error:
            raise ConfigError(f"latent_layout: {error}") from None


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return int(value)
