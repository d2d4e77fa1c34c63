"""Describes what a worker runs on: interpreter, packages, torch, GPUs, CPU, variables of seeds.

The program of the ranks runs this file alone, by its path, so it imports nothing of this package.
"""

import contextlib
import json
import os
import re
import sys
from typing import Dict, List

_PACKAGES_MAX = 5000
_TEXT_MAX = 100
"""Characters of a name or a value."""
_PART = 60
"""Entries of one line."""
_READ_MAX = 64 * 1024
"""Bytes that are read of a file."""
_DISTRIBUTION = r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info"
_SEED = r"(?i)(?:.*_)?SEED|PYTHONHASHSEED|CUBLAS_WORKSPACE_CONFIG|.*DETERMINISTIC.*"
_PLAIN = r"(?i)[-:\d]{1,20}|random|true|false"  # a phrase may be the seed of a wallet
_SECRET = r"(?i)TOKEN|KEY|SECRET|PASSWORD"  # as client_lib.spec.job masks them


def describe(environment: Dict[str, str], has_python: bool = True) -> bytes:
    """Lines of the stream `metrics` of the log with the interpreter, packages, torch, CUDA, driver,
    GPUs, CPU and variables of seeds. `has_python` False: the ranks run another program than this
    interpreter. Packages are known by the names of their folders, which takes 1 ms for 190
    packages; importlib.metadata takes 60 ms."""
    import glob

    driver = "/proc/driver/nvidia/"
    gpus = [
        _found(r"^Model:\s*(.+)$", path)
        for path in sorted(glob.glob(driver + "gpus/*/information"))
    ]
    hardware = {
        "cpu": _found(r"^model name\s*: (.+)$", "/proc/cpuinfo") or os.uname().machine,
        "cores": str(os.cpu_count()),
        "driver": _found(r"Module\s.*?(\d+\.[\d.]+)", driver + "version"),
        "gpus": ", ".join(gpus),
    }
    packages: Dict[str, str] = {}
    for folder in sys.path if has_python else ():
        names: List[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(folder or ".")
        for found in filter(None, (re.fullmatch(_DISTRIBUTION, name) for name in names)):
            packages.setdefault(_clean(found[1]).replace("_", "-").lower(), _clean(found[2]))
        version_py = os.path.join(folder, "torch", "version.py")
        hardware["torch"] = hardware.get("torch") or _found(r"^__version__ = '(.+)'", version_py)
        hardware["cuda"] = hardware.get("cuda") or _found(r"^(?:cuda|hip)\b.* = '(.+)'", version_py)
        hardware["python"] = "%s %s" % (sys.implementation.name, sys.version.split()[0])
    seeds = {
        name: value
        for name, value in environment.items()
        if re.fullmatch(_SEED, name)
        and re.fullmatch(_PLAIN, value)
        and not re.search(_SECRET, name)
    }
    lines = []
    for part, facts in (("hardware", hardware), ("seeds", seeds), ("packages", packages)):
        items = sorted((_clean(name), value) for name, value in facts.items() if value)[
            :_PACKAGES_MAX
        ]
        lines += [{part: dict(items[at : at + _PART])} for at in range(0, len(items), _PART)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _found(pattern: str, path: str) -> str:
    found = re.search(pattern, _content(path), re.MULTILINE)
    return _clean(found[1]) if found else ""


def _content(path: str) -> str:
    """Beginning of a file; "": it is missing, or belongs to another user."""
    try:
        with open(path, "rb") as file:
            return file.read(_READ_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def _clean(text: str) -> str:
    return text.strip().encode("utf-8", "replace").decode()[:_TEXT_MAX]


if __name__ == "__main__":
    del sys.path[0]  # this folder: the ranks do not have it
    sys.stdout.buffer.write(describe(dict(os.environ)))
