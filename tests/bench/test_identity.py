from __future__ import annotations

from dataclasses import replace

import pytest

from bgmiv.bench.identity import RunKey, identify, identify_all
from bgmiv.bench.plan import RunSpec
from bgmiv.errors import ConfigError

SPEC = RunSpec("demand", 1000, 0.5, "bgm-iv", "paper", 0)


def test_run_id_is_stable_and_tells_runs_apart() -> None:
    key = RunKey(SPEC, "a" * 16, "b" * 16)
    # Stored rows are found by this name: changing it orphans every store.
    assert key.run_id == "77ce571a1d37359b"
    changes = (
        {"design": "vector-proxy"}, {"n": 5000}, {"rho": 0.1}, {"method": "tsls"}, {"preset": "default"}, {"seed": 1},
    )  # fmt: skip
    others = [replace(key, spec=replace(SPEC, **change)) for change in changes]  # type: ignore[arg-type]
    others += [replace(key, config="c" * 16), replace(key, code="c" * 16)]
    assert len({other.run_id for other in (key, *others)}) == 9


def test_settings_and_code_are_part_of_a_run() -> None:
    paper, default, other_seed, tsls, proxy = identify_all(
        [
            SPEC,
            replace(SPEC, preset="default"),
            replace(SPEC, seed=1),
            replace(SPEC, method="tsls", preset="default"),
            replace(SPEC, design="vector-proxy"),
        ]
    )
    assert paper == identify(SPEC)
    assert paper.config != default.config
    assert paper.code == default.code
    assert (other_seed.config, other_seed.code) == (paper.config, paper.code)
    assert tsls.code != paper.code
    # The same method on another design: other code makes the sample, other scaling is set.
    assert proxy.code != paper.code
    assert proxy.config != paper.config


@pytest.mark.parametrize("change", [{"design": "airline"}, {"method": "ols"}, {"preset": "fast"}])
def test_unknown_names_have_no_key(change: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        identify(replace(SPEC, **change))  # type: ignore[arg-type]
