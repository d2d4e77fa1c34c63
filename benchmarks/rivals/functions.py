"""Functions run by those who need an interpreter of their own
(.venv-bench-functions): the command of each.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2] / ".venv-bench-functions" / "bin" / "python"


def commands() -> dict[str, list[str]]:
    """Name -> command; says on stderr which are left out, and why. Each ends
    with its seconds on stderr.
    """
    here = Path(__file__).parent
    if not PYTHON.exists():
        print(f"TorchDistributor and Kubeflow are left out: there is no {PYTHON}", file=sys.stderr)
        return {}
    found = {"Kubeflow, local process": [str(PYTHON), str(here / "kubeflow_local.py")]}
    if shutil.which("java") is None:
        print("TorchDistributor is left out: there is no java", file=sys.stderr)
        return found
    return {"TorchDistributor, local": [str(PYTHON), str(here / "torch_distributor.py")], **found}
