from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

import convert_rows
from bgmiv.bench import Plan, Row, RowStore, Sweep
from bgmiv.bench.plan import canonical_json

PLAN = Plan("mine", "two seeds", (Sweep(["demand"], [100], [0.5], ["tsls"], repeats=2),))


def write(path: Path, kind: str, content: dict[str, object]) -> None:
    """A file as earlier versions wrote them."""
    checksum = hashlib.sha256(f"{kind}\n{canonical_json(content)}".encode()).hexdigest()
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"kind": kind, "content": content, "sha256": checksum}, indent=1))


def test_rows_and_plans_are_taken_over(tmp_path: Path, make_row: Callable[..., Row]) -> None:
    rows = [make_row(design=design, seed=seed) for design in ("demand", "lowdim-sin") for seed in (0, 1)]
    for row in rows:
        write(tmp_path / f"{row.key.run_id}.json", "bgmiv row 3", asdict(row))
    write(tmp_path / "plans" / "0.json", "bgmiv plan 1", asdict(PLAN))
    damaged = tmp_path / f"{rows[0].key.run_id}.json"
    before = damaged.read_text()
    damaged.write_text(before.replace("9000.0", "1.0"))
    with pytest.raises(SystemExit, match="is damaged"):
        convert_rows.main(tmp_path)
    damaged.write_text(before)
    convert_rows.main(tmp_path)
    store = RowStore(tmp_path)
    assert store.rows() == tuple(sorted(rows, key=lambda row: row.key))
    assert store.plans() == (PLAN,)
    assert not list(tmp_path.rglob("*.json"))
