"""Reads what a worker runs on: interpreter, packages, torch, CUDA, driver, GPUs, CPU and variables of seeds.

The launcher puts it into the log as JSON objects of the stream `metrics`, so that both runtimes carry it. The program
of the ranks runs this file; a launcher out of the warm pool calls it. Packages are known by the names of their folders,
which takes 1 ms for 190 packages; importlib.metadata takes 60 ms. torch is not imported.
"""

import glob
import json
import os
import re
import sys
from typing import Dict

_PACKAGES_MAX, _TEXT_MAX, _PART = 5000, 100, 60  # packages in all, characters of a text, and entries of a line
_DISTRIBUTION = re.compile(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_SEED = re.compile(r"(?:.*_)?SEED|PYTHONHASHSEED|CUBLAS_WORKSPACE_CONFIG|.*DETERMINISTIC.*", re.IGNORECASE)
_PLAIN = re.compile(r"[-:\d]{1,20}|random|true|false", re.IGNORECASE)  # a phrase may be the seed of a wallet
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)  # as client_lib.spec.job masks them


def read(environment: Dict[str, str], has_python: bool = True) -> bytes:
    """Lines of the log. `has_python` False: the ranks run another program than this interpreter."""
    driver = "/proc/driver/nvidia/"
    hardware = {
        "cpu": _found(r"^model name\s*: (.+)$", "/proc/cpuinfo") or os.uname().machine,
        "cores": str(os.cpu_count()),
        "driver": _found(r"Module\s.*?(\d+\.[\d.]+)", driver + "version"),
        "gpus": ", ".join(
            _found(r"^Model:\s*(.+)$", path) for path in sorted(glob.glob(driver + "gpus/*/information"))
        ),
    }
    packages: Dict[str, str] = {}
    for folder in sys.path if has_python else ():
        for name, version in map(re.Match.groups, filter(None, map(_DISTRIBUTION.fullmatch, _names(folder)))):
            packages.setdefault(_clean(name).replace("_", "-").lower(), _clean(version))
        version_py = os.path.join(folder, "torch", "version.py")
        hardware["torch"] = hardware.get("torch") or _found(r"^__version__ = '(.+)'", version_py)
        hardware["cuda"] = hardware.get("cuda") or _found(r"^(?:cuda|hip)\b.* = '(.+)'", version_py)
        hardware["python"] = "%s %s" % (sys.implementation.name, sys.version.split()[0])
    seeds = {
        name: value
        for name, value in environment.items()
        if _SEED.fullmatch(name) and _PLAIN.fullmatch(value) and not _SECRET.search(name)
    }
    lines = []
    for part, facts in (("hardware", hardware), ("seeds", seeds), ("packages", packages)):
        items = sorted((_clean(name), value) for name, value in facts.items() if value)[:_PACKAGES_MAX]
        lines += [{part: dict(items[at : at + _PART])} for at in range(0, len(items), _PART)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _names(folder: str) -> "list[str]":
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


def _found(pattern: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.search(pattern, file.read(65536), re.MULTILINE)
    except OSError:
        return ""
    return _clean(found.group(1)) if found else ""


def _clean(text: str) -> str:
    return text.strip().encode("utf-8", "replace").decode()[:_TEXT_MAX]


if __name__ == "__main__":
    del sys.path[0]  # this folder: the ranks do not have it
    sys.stdout.buffer.write(read(dict(os.environ)))
