"""Turn a store of an earlier version, with a file for each row and plan, into one with a file for each design.

python benchmarks/convert_rows.py benchmarks/results

Old files are removed once all of them have been read, checked and written anew; a second call goes on after a kill.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from bgmiv.bench import Plan, Row, RowStore, Sweep
from bgmiv.bench.plan import canonical_json
from bgmiv.errors import ConfigError


def content_of(path: Path) -> dict[str, Any]:
    """What the file holds, if its checksum says that it is whole."""
    stored = json.loads(path.read_bytes())
    text = f"{stored['kind']}\n{canonical_json(stored['content'])}"
    if hashlib.sha256(text.encode()).hexdigest() != stored["sha256"]:
        raise SystemExit(f"{path} is damaged; remove it")
    return dict(stored["content"])


def main(folder: Path) -> None:
    """Convert the store there."""
    store, paths = RowStore(folder), sorted(folder.glob("[0-9a-f]" * 16 + ".json"))
    rows = sorted((Row(**content_of(path)) for path in paths), key=lambda row: row.key)
    store.write(*rows)
    plans = sorted((folder / "plans").glob("*.json"))
    for path in plans:
        content = content_of(path)
        try:
            sweeps = tuple(Sweep(**sweep) for sweep in content["sweeps"])
        except ConfigError as error:
            print(f"left out the plan {content['name']}: {error}")
            continue
        store.keep_plan(Plan(content["name"], content["title"], sweeps))
    missing = [row for row in rows if store.find(row.key) != row]
    if missing:
        raise SystemExit(f"{len(missing)} rows are not in the new files as they were; nothing is removed")
    for path in (*paths, *plans):
        path.unlink()
    print(f"{len(rows)} rows and {len(store.plans())} plans")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
