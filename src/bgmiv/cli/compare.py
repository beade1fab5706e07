"""``bgmiv compare``: several methods on the same file and question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgmiv.cli.common import at_least, reported, share_between, words
from bgmiv.cli.methods import check_method, check_preset, complete_method, complete_preset, make_model
from bgmiv.cli.output import print_json
from bgmiv.cli.roles import (
    Covariates,
    Data,
    Formula,
    Groups,
    Instruments,
    Kind,
    MissingValues,
    Outcome,
    Treatment,
    Weights,
    chosen_roles,
    fitted_model,
    warnings_shown,
)
from bgmiv.cli.saved import read_treatment

if TYPE_CHECKING:
    from bgmiv.show.compare import Comparison

__all__ = ["EPILOG", "compare"]

EPILOG = """Example: bgmiv compare card.csv --formula 'lwage ~ exper + \\[educ ~ nearc4]' --methods tsls,bgm-iv

Exit codes: 0 fine; 1 bad data; 2 bad usage; 130 Ctrl-C."""


@reported
def compare(
    data: Data,
    formula: Formula = None,
    outcome: Outcome = None,
    treatment: Treatment = None,
    instruments: Instruments = None,
    covariates: Covariates = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Names, tsls,kiv or the option repeated; NAME-noiv ignores the instrument. "
            "By default tsls,tsls-noiv,bgm-iv.",
            autocompletion=complete_method,
        ),
    ] = None,
    preset: Annotated[str, typer.Option(help="The methods' settings.", autocompletion=complete_preset)] = "default",
    t0: Annotated[str | None, typer.Option(help="The treatment that is compared with; by default a quartile.")] = None,
    t1: Annotated[str | None, typer.Option(help="The treatment whose effect is asked for, likewise.")] = None,
    weights: Weights = None,
    groups: Groups = None,
    missing: MissingValues = "raise",
    kind: Kind = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the fits.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The same average effect by several methods, side by side."""
    roles = chosen_roles(formula, outcome, treatment, instruments, covariates, weights, groups, missing, kind)
    names = list(dict.fromkeys(words(methods or ["tsls,tsls-noiv,bgm-iv"])))
    for name in names:
        check_method(name, "--methods")
    check_preset(preset)
    share_between(level, "--level")
    at_least(0, seed, "--seed")
    if (t0 is None) != (t1 is None):
        raise typer.BadParameter("give both --t0 and --t1, or none", param_hint="--t0")

    from bgmiv.data.files import read_table_file
    from bgmiv.show.compare import compare as compared

    table = read_table_file(data)
    with warnings_shown(roles):
        models = {name: fitted_model(make_model(name, preset, seed, roles.kinds), table, roles) for name in names}
        asked: dict[str, Any] = {}
        if t0 is not None and t1 is not None:
            variable = next(iter(models.values())).fitted_.schema.treatment
            asked = {"t0": read_treatment(t0, variable, "--t0"), "t1": read_treatment(t1, variable, "--t1")}
        found: Comparison = compared(models, level=level, **asked)
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(str(found))
