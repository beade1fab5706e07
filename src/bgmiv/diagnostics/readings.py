"""The sentences of checks and findings, made from their numbers at the last step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from bgmiv.numerals import number, percent, robust_set_text

if TYPE_CHECKING:
    from bgmiv.diagnostics.check import Severity

__all__ = [
    "CHECKS", "FINDINGS", "NETWORKS", "NOT_MEASURED", "VERDICTS", "Reading", "as_sentence", "html_table", "line_remark",
    "not_measured_remark", "preparation_text", "read_finding",
]  # fmt: skip

Numbers = Mapping[str, float]
Labels = Mapping[str, str]
# Title, value and reading.
Words = tuple[str, str, str]


class Reading(NamedTuple):
    """A check in words: its title, main figures, what they mean and what to do, and where the method is published."""

    title: str
    value: str
    reading: str
    reference: str


def read_finding(key: str, value: float) -> str:
    """A finding of a verdict as a clause, without a capital or a full stop."""
    if math.isnan(value):
        return f"the measurement {key!r} is not a number"
    if key == "held_out" and not value:
        return "no rows were held out, so the fit could not be checked"
    return FINDINGS[key].format(value=value)


def as_sentence(clause: str) -> str:
    """A clause with a capital and a full stop."""
    return f"{clause[:1].upper()}{clause[1:]}."


def preparation_text(numbers: Numbers, labels: Labels) -> str:
    """What was done to the columns of the linear regressions (see `LinearColumns`); empty if nothing was."""
    text = {
        "absorbed": "Net of the {absorbed_levels:.0f} levels of categorical covariates with many levels, which the "
        "degrees of freedom count.",
        "components": "{covariate_columns:.0f} covariate columns are replaced by their {components:.0f} leading "
        "principal components.",
        "many_covariates": "The {many_covariates:.0f} covariate columns are more than a quarter of the rows. Sieves "
        "and BGM-IV penalise them, and so adjust for them less than this regression does.",
        "redundant_covariates": "Redundant covariate columns dropped: {redundant_covariates:.0f}.",
        "groups_ignored": "{groups_ignored:.0f} groups are too few for clustered standard errors; rows are treated as "
        "independent.",
    }
    sentences = [sentence.format(**numbers) for name, sentence in text.items() if name in numbers]
    if "dropped_instruments" in labels:
        names = labels["dropped_instruments"]
        sentences.append(f"Dropped because covariates or other instruments determine them: {names}.")
    return " ".join(sentences)


def html_table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """A titled HTML table for notebooks; every text is escaped."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = (row(header, "th") if header else "") + "".join(row(cells, "td") for cells in rows)
    texts = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<p><b>{escape(title)}</b></p>{texts}" + (f"<table>{body}</table>" if body else "")


def _p_text(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3g}"


def _effective_f(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    text = {
        "good": "The instruments are strong enough for the usual estimates and intervals.",
        "doubtful": "The instruments move the treatment, but the data do not show that the bias of two-stage least "
        "squares is below a tenth of its worst case. Use the Anderson-Rubin set in place of the usual interval.",
        "failed": "The instruments are weak. Estimates are biased towards ordinary regression, their intervals are too "
        "narrow, and a flexible method does no better. Rely only on the Anderson-Rubin set, or find stronger "
        "instruments.",
    }[severity]
    if numbers["instruments"] == 0:
        text = "The covariates determine the instruments, so nothing is left to move the treatment. Drop covariates."
    value = f"{number(numbers['effective_f'])}{_weakest(labels)}; critical value {number(numbers['critical'])}"
    return "Instrument strength (effective F)", value, f"{text} {preparation_text(numbers, labels)}".strip()


def _robust_f(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    text = {
        "good": "The instruments clearly predict the treatment.",
        "doubtful": "The F is above the rule of thumb of 10, but below the critical value of the effective F.",
        "failed": "The F is below 10, the rule of thumb for weak instruments.",
    }[severity]
    text += f" The instruments explain {numbers['partial_r2']:.2%} of the treatment's variance after covariates."
    if numbers["instruments"] > 1:
        text += " With several instruments, go by the effective F."
    title = f"First-stage F with {'clustered' if numbers['clustered'] else 'robust'} standard errors"
    return title, f"{number(numbers['robust_f'])}{_weakest(labels)}; partial R² {numbers['partial_r2']:.3g}", text


def _weakest(labels: Labels) -> str:
    return f" for level {labels['level']!r}, the weakest" if "level" in labels else ""


def _nonlinear_first_stage(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    text = {
        "good": "The instruments help to predict the treatment of held-out rows.",
        "doubtful": "The instruments help little to predict the treatment of held-out rows.",
        "failed": "The instruments hardly help to predict the treatment of held-out rows, in any form the model found.",
    }[severity]
    if severity != "good":
        text += " The causal curve then has little to rest on. Find stronger instruments, or use more rows."
    return "Instrument strength (held-out gain in log-likelihood)", f"{numbers['gain']:.3g} per row", text


def _anderson_rubin(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    pieces = range(1, int(numbers["intervals"]) + 1)
    found = [(numbers[f"lower_{i}"], numbers[f"upper_{i}"]) for i in pieces]
    zero = "contains zero" if numbers["holds_zero"] else "does not contain zero"
    text = {
        "good": f"This set for the linear effect is valid however weak the instruments are. It {zero}.",
        "doubtful": "No linear effect agrees with all instruments: at least one affects the outcome directly, or the "
        "effect is not linear. See the overidentification test.",
        "failed": "The set is unbounded: with instruments this weak the data do not limit the effect, whatever other "
        "intervals say. Find stronger instruments.",
    }[severity]
    wider = found and (found[0][0] < numbers["usual_lower"] or found[-1][1] > numbers["usual_upper"])
    if severity == "good" and wider:
        text += " Where it is wider than the usual interval, use the set."
    title = f"Linear effect, {percent(numbers['level'])} set robust to weak instruments (Anderson-Rubin)"
    return title, robust_set_text(found), text


def _detail(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    values = [value for name, value in numbers.items() if name.startswith("shape_")]
    visible, possible = int(numbers["visible"]), int(numbers["possible"])
    if possible == 1:
        text = "A treatment of two values has one contrast and no curvature"
        text += ". " if visible else ", and the instruments do not show it clearly. "
    elif len(values) == 1:
        text = "These instruments can show a straight line and no curvature"
        text += ". " if visible else ", and the line not clearly. "
    else:
        text = (
            f"Of {possible} shapes that the curve can have (a straight line, then ever finer bends) the "
            f"instruments show {visible} clearly. The numbers are singular values: how much of each shape is left in "
            "its mean given the instruments. "
        )
    if visible < min(2, possible):
        text += "Any curvature in the estimate rests on the assumption of smoothness. "
    shown = ", ".join(f"{value:.2f}" for value in values[:4]) + (", ..." if len(values) > 4 else "")
    return "How much detail do the instruments show? (singular values)", shown, text.strip()


def _overidentification(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    text = (
        "The instruments agree on the linear effect. This does not show that they are valid: all could be biased in "
        "the same way."
        if severity == "good"
        else "The instruments disagree on the linear effect: at least one affects the outcome directly, or the effect "
        "is not linear or differs between rows. Decide which instrument is the least credible, and fit without it."
    )
    value = f"{_p_text(numbers['j_p'])} (J), {_p_text(numbers['sargan_p'])} (Sargan)"
    return "Do the instruments agree? (Hansen's J, Sargan)", value, text


def _endogeneity(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    text = (
        "Ordinary regression and two-stage least squares differ by more than chance: the treatment is endogenous, and "
        "instruments are needed."
        if numbers["robust_p"] < 0.05
        else "Ordinary regression and two-stage least squares do not differ by more than chance. Either there is "
        "little confounding, or the instruments are too weak to show it. This is no reason to drop the instruments."
    )
    value = f"{_p_text(numbers['robust_p'])} (robust), {_p_text(numbers['wu_hausman_p'])} (Wu-Hausman)"
    return "Is the treatment endogenous? (Wooldridge, Wu-Hausman, Durbin)", value, text


def _moment_test(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    title = "Does the curve satisfy its moment condition, E[outcome - g | instruments, covariates] = 0?"
    if "p" not in numbers:
        text = "The fit predicts values that are not numbers, so it has failed. Fit again with another seed."
        return title, "not a number", text
    text = (
        "Instruments and covariates do not predict the residuals of the curve, as a correct curve requires."
        if severity == "good"
        else "Instruments or covariates predict the residuals of the curve: it is wrong by more than chance, by "
        f"{max(numbers['statistic'], 0.0):.2%} of the outcome's variance. Train longer or use more rows. If that "
        "does not help, question the exclusion restriction. With many rows even small errors are found."
    )
    which = "held-out rows" if numbers["held_out"] else "rows of the fit"
    if not numbers["held_out"]:
        text += " The curve was fitted on these rows, so the test rejects too rarely."
    return title, f"{_p_text(numbers['p'])} ({numbers['rows']:.0f} {which})", text


def _no_instrument(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    own, without = f"{numbers['effect']:.4g}", f"{numbers['without_instrument']:.4g}"
    text = (
        f"For a change of treatment {labels['change']} the average effect is {own} with the instruments and {without} "
        "without them. The difference is the correction for confounding. Is its size plausible?"
    )
    if severity == "doubtful":
        text += (
            f" Linear 2SLS corrects by {numbers['linear_difference']:.4g}: this fit may have missed the confounding. "
            "Train longer."
        )
    return "With and without the instruments", f"{own} with, {without} without", text


def _linear_comparison(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    own, linear, lower, upper = (f"{numbers[name]:.4g}" for name in ("effect", "linear", "lower", "upper"))
    text = f"For a change of treatment {labels['change']} the average effect is {own}, and {linear} "
    text += f"by 2SLS (usual interval {lower} to {upper}). "
    text += {
        "good": "The average effect agrees with linear two-stage least squares, within its interval.",
        "doubtful": "The fit and linear two-stage least squares have opposite signs. Find out why before using either.",
        "note": "This fit is linear two-stage least squares itself."
        if numbers["same"]
        else "The average effect differs from linear two-stage least squares. This is expected if the effect is not "
        "linear or differs between rows, which 2SLS weights differently: look at the curve. If the curve is straight, "
        "the difference is a warning.",
    }[severity]
    return "Comparison with linear two-stage least squares", f"{own}; 2SLS {linear}", text


def _latent_usage(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    parts = []
    for part in ("shared", "outcome-only", "treatment-only", "nuisance"):
        keys = [(target, f"{part}.{target}") for target in ("treatment", "outcome", "covariates")]
        used = [f"{target} {numbers[key]:.2f}" for target, key in keys if key in numbers]
        parts += [f"{part}: {', '.join(used)}"] if used else []
    text = (
        "Mean change of the predictions, in standard deviations, when a part of the latents is permuted between rows."
    )
    text += (
        " No part affects the outcome, so all rows have the same curve. If they should differ, train longer."
        if severity == "doubtful"
        else " The shared part carries observed confounding. A part with changes near zero is not needed."
    )
    return "What the latents are used for", "; ".join(parts), text


def line_remark(visible: int | None, shapes: int | None, error: float | None) -> str:
    """What a line that was found says of the effect.

    Args:
        visible, shapes: how many shapes of a curve the instruments show, and of how many; None without curves.
        error: the least error of a curve, as a share of the outcome's variance, that the regression given a control
            variable would have told from none; None where it would have told nothing.
    """
    if visible is None or shapes is None:
        return "The data show no interaction, so the estimate is that of linear two-stage least squares."
    if visible < 2 and error is not None:
        return (
            "A linear model is enough here if confounding works through what the first stage leaves of the treatment: "
            f"given this control variable, a curve that misses {error:.1%} of the outcome's variance would have been "
            f"seen. The instruments alone show {visible} of {shapes} shapes of a curve clearly."
        )
    if visible < 2:
        return (
            "The estimate is that of linear two-stage least squares, because the instruments could not have shown any "
            f"curvature: of {shapes} shapes of a curve they show {visible} clearly. This does not say that the effect "
            "is linear."
        )
    return (
        "A linear model is enough here: the data show no curvature and no interaction, so the estimate is that of "
        f"linear two-stage least squares. The instruments could have shown {visible} of {shapes} shapes of a curve; "
        "finer ones they could not."
    )


def not_measured_remark(names: Sequence[str]) -> str:
    """What held-out rows could not show."""
    return f"Not measured on held-out rows: {', '.join(names)}."


VERDICTS = {
    "good": "This fit passed its held-out checks.",
    "note": "No held-out check that could be made speaks against this fit.",
    "unchecked": "This fit was not checked on held-out rows.",
    "doubtful": "This fit is doubtful.",
    "failed": "This fit failed its held-out checks; do not use it.",
}
"""How a verdict begins."""

NETWORKS = {
    "nothing left": "Networks were not trained: nothing was left for them in held-out rows.",
    "not wanted": "Networks were not trained, as asked (networks=False).",
    "few rows": "Networks were not trained: there are too few rows to hold out any that tell whether to use them.",
}
"""What a verdict says of networks that were not trained, by the reason."""

NOT_MEASURED = {
    "linear_explained": "the comparison with a linear regression",
    "flexible_explained": "the comparison with a kernel regression",
    "moment_risk": "the moment condition",
    "control_error": "the error of the curve given a control variable",
}
"""What a verdict says of a check that could not be made, by the evidence that it lacks."""


def _verdict(severity: Severity, numbers: Numbers, labels: Labels) -> Words:
    found = [as_sentence(read_finding(key, value)) for key, value in numbers.items() if key in FINDINGS]
    value = f"{severity} ({numbers['n_held_out']:.0f} held-out rows)"
    start, remarks = labels.get("start", VERDICTS[severity]), labels.get("remarks", "")
    return "Held-out checks of the fit", value, " ".join([start, *found, remarks]).strip()


_GUIDE = "The guide's page on diagnostics"
_STAIGER = "Staiger and Stock (1997), Econometrica 65, 557-586"
_MMR = "Zhang et al. (2020), Maximum moment restriction, arXiv:2010.07684; Delgado et al. (2006), wild bootstrap"
CHECKS: dict[str, tuple[Callable[[Severity, Numbers, Labels], Words], str]] = {
    "effective-f": (_effective_f, "Montiel Olea and Pflueger (2013), J. Business & Economic Statistics 31, 358-369"),
    "robust-f": (_robust_f, f"{_STAIGER}; Andrews, Stock and Sun (2019), Annual Review of Economics 11, 727-753"),
    "nonlinear-first-stage": (_nonlinear_first_stage, _GUIDE),
    "anderson-rubin": (_anderson_rubin, "Anderson and Rubin (1949), Annals of Mathematical Statistics 20, 46-63"),
    "detail": (_detail, "Chen and Reiss (2011), Econometric Theory 27; Nychka (1988), JASA 83, 1134-1143"),
    "overidentification": (_overidentification, "Sargan (1958), Econometrica 26; Hansen (1982), Econometrica 50"),
    "endogeneity": (_endogeneity, "Durbin (1954); Wu (1973); Hausman (1978), Econometrica 46; Wooldridge (1995)"),
    "moment-test": (_moment_test, _MMR),
    "no-instrument": (_no_instrument, _GUIDE),
    "linear-comparison": (_linear_comparison, "Angrist and Imbens (1995), J. American Statistical Association 90"),
    "latent-usage": (_latent_usage, _GUIDE),
    "verdict": (_verdict, _GUIDE),
}
"""How each check is read, and its reference, in reading order."""

FINDINGS = {
    "held_out": "only {value:.0f} rows were held out to check the fit",
    "steps": "training took only {value:.0f} steps, too few for the held-out checks to mean much",
    "instrument_f": "the instruments are weak (effective F {value:.1f}): use the Anderson-Rubin set of the linear "
    "effect, or find stronger instruments or more rows",
    "first_stage_gain": "the instruments hardly help to predict the treatment of held-out rows (log-likelihood gain "
    "{value:.3g} per row)",
    "explained": "instruments and covariates explain only {value:.1%} of the outcome's variance in held-out rows",
    "behind_linear": "the fit leaves {value:.1f} times as much of the outcome unexplained in held-out rows as a "
    "linear regression",
    "behind_flexible": "the fit leaves {value:.1f} times as much of the outcome unexplained in held-out rows as a "
    "kernel regression",
    "missed": "the fit misses {value:.0%} of what a linear or kernel regression explains of the outcome in held-out "
    "rows",
    "covariates_gain": "the covariates explain only {value:.2%} of the outcome's held-out variance beyond the "
    "instruments; check that they belong to these rows and are needed",
    "moment_linear": "linear 2SLS satisfies the held-out moment condition E[y - g | w, v] = 0 better, by {value:.2%} "
    "of the outcome's variance",
    "moment_p": "instruments or covariates predict the residuals of held-out rows (moment test, p = {value:.2g}), so "
    "the curve is wrong by more than chance",
    "control_error": "given a control variable for confounding (what the first stage leaves of the treatment), "
    "treatment and covariates predict the errors of held-out rows: if confounding works through this variable alone, "
    "the curve misses {value:.2%} of the outcome's variance",
    "moment_treatment": "a cubic in the treatment alone satisfies the held-out moment condition E[y - g | w, v] = 0 "
    "better, by {value:.2%} of the outcome's variance, so what the fit adds to it does harm",
    "outcome_gap": "the outcome's loss is {value:.1f} times larger in held-out rows than in training, so the model has "
    "memorised rows",
    "treatment_gap": "the treatment's log-likelihood is {value:.2f} per row lower in held-out rows than in training, "
    "so the model has memorised rows",
    "disagreement": "the ensemble's members differ by {value:.0%} of the outcome's standard deviation, so the fit "
    "depends on chance",
    "near_floor": "{value:.0%} of the treatment variances are at their lower bound: the treatment is predicted without "
    "error",
    "latent_spread": "the latents have a mean standard deviation of {value:.2f} (the prior has 1), so they carry "
    "little information",
    "penalised_covariates": "the {value:.0f} covariate columns are more than a quarter of the rows and are penalised, "
    "so the fit adjusts for them only in part",
    "failed_members": "training failed for {value:.0%} of the ensemble's members",
}
"""How each finding of a verdict is read."""
