"""The docstring of the package lists its modules and folders, and leaves none out."""

import re
from pathlib import Path

from server_stub.runtimes import kube


def test_every_module_and_folder_is_listed_once() -> None:
    """Names at the left, their meaning at the right."""
    text = kube.__doc__ or ""
    rows = [
        re.split(r"\s{2,}", line.strip())[0]
        for line in text.splitlines()
        if re.match(r" {4}\S", line)
    ]
    named = [name for row in rows for name in row.split(", ")]
    folder = Path(kube.__file__).parent
    there = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    there += [path.parent.name for path in folder.glob("*/__init__.py")]
    assert sorted(named) == sorted(there)
