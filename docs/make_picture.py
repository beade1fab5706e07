"""Write docs/static/curve.png, the README's picture: the figure of the marketing tutorial as `make docs` has run it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
DRAWN_BY = 'axes.plot(doses, true_curve, "k--", label="truth")'

if __name__ == "__main__":
    runs = sorted(
        (HERE.parent / "out" / "docs-cache").glob("executed/*/base.ipynb"), key=lambda run: run.stat().st_mtime
    )
    cells = [
        cell for run in runs for cell in json.loads(run.read_text())["cells"] if DRAWN_BY in "".join(cell["source"])
    ]
    if not cells:
        raise SystemExit("no run of the marketing tutorial is kept: make docs")
    (picture,) = (
        output["data"]["image/png"] for output in cells[-1]["outputs"] if "image/png" in output.get("data", {})
    )
    (HERE / "static" / "curve.png").write_bytes(base64.b64decode(picture))
