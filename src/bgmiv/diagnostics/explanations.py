"""The result of a check, on one scale of severity, and what it means in sentences made from its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from textwrap import fill
from typing import Literal, NamedTuple

from bgmiv.errors import printable
from bgmiv.numerals import number, percent, robust_set_text

__all__ = [
    "CHECKS", "SEVERITIES", "Check", "Explanation", "Limits", "Severity", "html_table", "preparation_text", "worst",
]  # fmt: skip

Severity = Literal["good", "note", "doubtful", "failed"]

SEVERITIES: tuple[Severity, ...] = ("good", "note", "doubtful", "failed")
"""The one scale of all checks and verdicts, best first; a note is neither for nor against a fit."""


def worst(severities: Iterable[Severity]) -> Severity:
    """The worst of these; good if there are none."""
    return max(severities, key=SEVERITIES.index, default="good")


class Limits(NamedTuple):
    """Beyond which values a measurement is doubtful, and beyond which the fit has failed.

    They are upper limits if failing is above being doubtful, and lower limits otherwise.
    """

    doubtful: float
    failed: float

    def severity(self, value: float) -> Severity:
        """The severity of a measurement; one that is not a number has failed."""
        sign = 1 if self.failed > self.doubtful else -1
        if sign * value <= sign * self.doubtful:
            return "good"
        return "doubtful" if sign * value <= sign * self.failed else "failed"


class Explanation(NamedTuple):
    """A check in words: its title, main figures, and what they mean and what to do."""

    title: str
    value: str
    reading: str


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Args:
        key: its fixed name, such as "effective-f".
        severity: "good", "note" (neither for nor against), "doubtful" or "failed".
        numbers: the figures, by name.
        labels: names that the sentences need, such as the level of the treatment.

    Example:
        >>> check = Check("effective-f", "doubtful", {"effective_f": 14.2, "critical": 23.1, "instruments": 1.0})
        >>> check.title, check.value
        ('Instrument strength (effective F)', '14.2; critical value 23.1')
    """

    key: str
    severity: Severity
    numbers: dict[str, float]
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def explanation(self) -> Explanation:
        """The check in words."""
        return CHECKS[self.key][0](self)

    @property
    def title(self) -> str:
        """What was checked."""
        return self.explanation.title

    @property
    def value(self) -> str:
        """The main figures as shown."""
        return self.explanation.value

    @property
    def reading(self) -> str:
        """What the result means for the analysis, and what to do."""
        return self.explanation.reading

    @property
    def reference(self) -> str:
        """Where the method is published."""
        return CHECKS[self.key][1]

    def __str__(self) -> str:
        """Title, value, what it means, and the reference."""
        lines = [fill(f"[{self.severity}] {self.title}: {self.value}", 80)]
        for part in (self.reading, f"({self.reference})"):
            lines.append(fill(part, 80, initial_indent="    ", subsequent_indent="    "))
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        return html_table(self.title, self.reading, [(self.severity, self.value)])


_PREPARATION = {
    "absorbed": "Net of the {absorbed_levels:.0f} levels of categorical covariates with many levels, which the degrees "
    "of freedom count.",
    "components": "{covariate_columns:.0f} covariate columns are replaced by their {components:.0f} leading principal "
    "components.",
    "many_covariates": "The {many_covariates:.0f} covariate columns are more than a quarter of the rows. Sieves and "
    "BGM-IV penalise them, and so adjust for them less than this regression does.",
    "redundant_covariates": "Redundant covariate columns dropped: {redundant_covariates:.0f}.",
    "groups_ignored": "{groups_ignored:.0f} groups are too few for clustered standard errors; rows are treated as "
    "independent.",
    "dropped_instruments": "Dropped because covariates or other instruments determine them: {dropped_instruments}.",
}


def preparation_text(numbers: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """What was done to the columns of the linear regressions (see `DesignMatrix`); empty if nothing was."""
    known = {**numbers, **labels}
    return " ".join(sentence.format(**known) for name, sentence in _PREPARATION.items() if name in known)


def html_table(title: str, note: str, rows: Iterable[Iterable[str]]) -> str:
    """A titled HTML table for notebooks; every text is escaped."""
    body = "".join("<tr><td>" + "<td>".join(map(escape, row)) for row in rows)
    return f"<p><b>{escape(title)}</b> {escape(note)}</p><table>{body}</table>"


def _p_text(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3g}"


def _weakest(labels: Mapping[str, str]) -> str:
    return f" for level {labels['level']!r}, the weakest" if "level" in labels else ""


def _effective_f(check: Check) -> Explanation:
    numbers = check.numbers
    text = {
        "good": "The instruments are strong enough for the usual estimates and intervals.",
        "doubtful": "The instruments move the treatment, but the data do not show that the bias of two-stage least "
        "squares is below a tenth of its worst case. Use the Anderson-Rubin set in place of the usual interval.",
        "failed": "The instruments are weak. Estimates are biased towards ordinary regression, their intervals are too "
        "narrow, and a flexible method does no better. Rely only on the Anderson-Rubin set, or find stronger "
        "instruments.",
    }[check.severity]
    if numbers["instruments"] == 0:
        text = "The covariates determine the instruments, so nothing is left to move the treatment. Drop covariates."
    value = f"{number(numbers['effective_f'])}{_weakest(check.labels)}; critical value {number(numbers['critical'])}"
    text = f"{text} {preparation_text(numbers, check.labels)}".strip()
    return Explanation("Instrument strength (effective F)", value, text)


def _robust_f(check: Check) -> Explanation:
    numbers = check.numbers
    text = {
        "good": "The instruments clearly predict the treatment.",
        "doubtful": "The F is above the rule of thumb of 10, but below the critical value of the effective F.",
        "failed": "The F is below 10, the rule of thumb for weak instruments.",
    }[check.severity]
    text += f" The instruments explain {numbers['partial_r2']:.2%} of the treatment's variance after covariates."
    if numbers["instruments"] > 1:
        text += " With several instruments, go by the effective F."
    title = f"First-stage F with {'clustered' if numbers['clustered'] else 'robust'} standard errors"
    value = f"{number(numbers['robust_f'])}{_weakest(check.labels)}; partial R² {numbers['partial_r2']:.3g}"
    return Explanation(title, value, text)


def _nonlinear_first_stage(check: Check) -> Explanation:
    text = {
        "good": "The instruments help to predict the treatment of held-out rows.",
        "doubtful": "The instruments help little to predict the treatment of held-out rows.",
        "failed": "The instruments hardly help to predict the treatment of held-out rows, in any form the model fits.",
    }[check.severity]
    if check.severity != "good":
        text += " The causal curve then has little to rest on. Find stronger instruments, or use more rows."
    title = "Instrument strength (held-out gain in log-likelihood)"
    return Explanation(title, f"{check.numbers['gain']:.3g} per row", text)


def _anderson_rubin(check: Check) -> Explanation:
    numbered = range(1, int(check.numbers["intervals"]) + 1)
    pieces = [(check.numbers[f"lower_{i}"], check.numbers[f"upper_{i}"]) for i in numbered]
    zero = "contains zero" if check.numbers["holds_zero"] else "does not contain zero"
    text = {
        "good": f"This set for the linear effect is valid however weak the instruments are. It {zero}.",
        "doubtful": "No linear effect agrees with all instruments: at least one affects the outcome directly, or the "
        "effect is not linear. See the overidentification test.",
        "failed": "The set is unbounded: with instruments this weak the data do not limit the effect, whatever other "
        "intervals say. Find stronger instruments.",
    }[check.severity]
    wider = pieces and (pieces[0][0] < check.numbers["usual_lower"] or pieces[-1][1] > check.numbers["usual_upper"])
    if check.severity == "good" and wider:
        text += " Where it is wider than the usual interval, use the set."
    title = f"Linear effect, {percent(check.numbers['level'])} set robust to weak instruments (Anderson-Rubin)"
    return Explanation(title, robust_set_text(pieces), text)


def _ill_posedness(check: Check) -> Explanation:
    values = [f"{value:.2f}" for name, value in check.numbers.items() if name.startswith("shape_")]
    visible, possible = int(check.numbers["visible"]), int(check.numbers["possible"])
    text = (
        f"Of {possible} shapes that the curve can have (a straight line, then ever finer curvature) the instruments "
        f"show {visible} clearly. The numbers are singular values: how much of each shape is left in its mean given "
        "the instruments."
    )
    if visible < min(2, possible):
        text += " Any curvature in the estimate rests on the assumption of smoothness."
    value = ", ".join(values[:4]) + (", ..." if len(values) > 4 else "")
    return Explanation("Which shapes of the curve do the instruments show? (ill-posedness)", value, text)


def _overidentification(check: Check) -> Explanation:
    text = (
        "The instruments disagree on the linear effect: at least one affects the outcome directly, or the effect is "
        "not linear or differs between rows. Decide which instrument is the least credible, and fit without it."
    )
    if check.severity == "good":
        text = (
            "The instruments agree on the linear effect. This does not show that they are valid: all could be biased "
            "in the same way."
        )
    value = f"{_p_text(check.numbers['j_p'])} (J), {_p_text(check.numbers['sargan_p'])} (Sargan)"
    return Explanation("Do the instruments agree? (Hansen's J, Sargan)", value, text)


def _endogeneity(check: Check) -> Explanation:
    text = (
        "Ordinary regression and two-stage least squares do not differ by more than chance. Either there is little "
        "confounding, or the instruments are too weak to show it. This is no reason to drop the instruments."
    )
    if check.numbers["robust_p"] < 0.05:
        text = (
            "Ordinary regression and two-stage least squares differ by more than chance: the treatment is endogenous, "
            "and instruments are needed."
        )
    value = f"{_p_text(check.numbers['robust_p'])} (robust), {_p_text(check.numbers['wu_hausman_p'])} (Wu-Hausman)"
    return Explanation("Is the treatment endogenous? (Wooldridge, Wu-Hausman, Durbin)", value, text)


def _moment_test(check: Check) -> Explanation:
    numbers = check.numbers
    title = "Does the curve satisfy its moment condition, E[outcome - g | instruments, covariates] = 0?"
    if "p" not in numbers:
        text = "The fit predicts values that are not numbers, so it has failed. Fit again with another seed."
        return Explanation(title, "not a number", text)
    text = (
        "Instruments or covariates predict the residuals of the curve: it is wrong by more than chance, by "
        f"{max(numbers['statistic'], 0.0):.2%} of the outcome's variance. Train longer or use more rows. If that does "
        "not help, question the exclusion restriction. With many rows even small errors are found."
    )
    if check.severity == "good":
        text = "Instruments and covariates do not predict the residuals of the curve, as a correct curve requires."
    which = "held-out rows"
    if not numbers["held_out"]:
        which = "rows of the fit"
        text += " The curve was fitted on these rows, so the test rejects too rarely."
    return Explanation(title, f"{_p_text(numbers['p'])} ({numbers['rows']:.0f} {which})", text)


def _no_instrument(check: Check) -> Explanation:
    numbers = check.numbers
    own, without = f"{numbers['effect']:.4g}", f"{numbers['without_instrument']:.4g}"
    text = (
        f"For a change of treatment {check.labels['change']} the average effect is {own} with the instruments and "
        f"{without} without them. The difference is the correction for confounding. Is its size plausible?"
    )
    if check.severity == "doubtful":
        text += (
            f" Linear 2SLS corrects by {numbers['linear_difference']:.4g}: this fit may have missed the confounding. "
            "Train longer."
        )
    return Explanation("With and without the instruments", f"{own} with, {without} without", text)


def _linear_comparison(check: Check) -> Explanation:
    numbers = check.numbers
    text = {
        "good": "The average effect agrees with linear two-stage least squares, within its interval.",
        "doubtful": "The fit and linear two-stage least squares have opposite signs. Find out why before using either.",
        "note": "The average effect differs from linear two-stage least squares. This is expected if the effect is not "
        "linear or differs between rows, which 2SLS weights differently: look at the curve. If the curve is straight, "
        "the difference is a warning.",
    }[check.severity]
    if numbers["same"]:
        text = "This fit is linear two-stage least squares itself."
    figures = (
        f"For a change of treatment {check.labels['change']} the average effect is {numbers['effect']:.4g}, and "
        f"{numbers['linear']:.4g} by 2SLS (usual interval {numbers['lower']:.4g} to {numbers['upper']:.4g})."
    )
    value = f"{numbers['effect']:.4g}; 2SLS {numbers['linear']:.4g}"
    return Explanation("Comparison with linear two-stage least squares", value, f"{figures} {text}")


def _latent_usage(check: Check) -> Explanation:
    parts: dict[str, list[str]] = {}
    for name, change in check.numbers.items():
        part, target = name.split(".")
        parts.setdefault(part, []).append(f"{target} {change:.2f}")
    value = "; ".join(f"{part}: {', '.join(changes)}" for part, changes in parts.items())
    text = "The shared part carries observed confounding. A part with changes near zero is not needed."
    if check.severity == "doubtful":
        text = "No part affects the outcome, so all rows have the same curve. If they should differ, train longer."
    how = "Mean change of the predictions, in standard deviations, when a part of the latents is permuted between rows."
    return Explanation("What the latents are used for", value, f"{how} {text}")


def _verdict(check: Check) -> Explanation:
    value = f"{check.severity} ({check.numbers['n_held_out']:.0f} held-out rows)"
    return Explanation("Held-out checks of the fit", value, check.labels["sentence"])


_GUIDE = "The guide's page on diagnostics"
_STAIGER = "Staiger and Stock (1997), Econometrica 65, 557-586"
_MMR = "Zhang et al. (2020), Maximum moment restriction, arXiv:2010.07684; Delgado et al. (2006), wild bootstrap"
CHECKS: dict[str, tuple[Callable[[Check], Explanation], str]] = {
    "effective-f": (_effective_f, "Montiel Olea and Pflueger (2013), J. Business & Economic Statistics 31, 358-369"),
    "robust-f": (_robust_f, f"{_STAIGER}; Andrews, Stock and Sun (2019), Annual Review of Economics 11, 727-753"),
    "nonlinear-first-stage": (_nonlinear_first_stage, _GUIDE),
    "anderson-rubin": (_anderson_rubin, "Anderson and Rubin (1949), Annals of Mathematical Statistics 20, 46-63"),
    "ill-posedness": (_ill_posedness, "Chen and Reiss (2011), Econometric Theory 27; Nychka (1988), JASA 83"),
    "overidentification": (_overidentification, "Sargan (1958), Econometrica 26; Hansen (1982), Econometrica 50"),
    "endogeneity": (_endogeneity, "Durbin (1954); Wu (1973); Hausman (1978), Econometrica 46; Wooldridge (1995)"),
    "moment-test": (_moment_test, _MMR),
    "no-instrument": (_no_instrument, _GUIDE),
    "linear-comparison": (_linear_comparison, "Angrist and Imbens (1995), J. American Statistical Association 90"),
    "latent-usage": (_latent_usage, _GUIDE),
    "verdict": (_verdict, _GUIDE),
}
"""How each check is explained, and its reference, in reading order."""
