"""The package says where things are, and leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path

from server_stub.runtimes import kube


def test_every_module_stands_on_the_map_once() -> None:
    """Below the prose: names at the left, what they are at the right."""
    text = kube.__doc__ or ""
    rows = [re.split(r"\s{2,}", line.strip())[0] for line in text.splitlines() if re.match(r" {4}\S", line)]
    named = [name for row in rows for name in row.split(", ")]
    there = [path.stem for path in Path(kube.__file__).parent.glob("*.py") if path.stem != "__init__"]
    assert sorted(named) == sorted(there)
