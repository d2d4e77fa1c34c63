"""What a release consists of: a wheel, an sdist, a bill of materials, and their digests.

The builds use the locked hatchling of the interpreter that runs this, and the time of the commit,
so that anybody can make the same bytes of the same commit.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from release.checkout import Refused, clone, committed_at

LOCK = "requirements/server.txt"
"""The lock file whose packages the bill of materials lists: what a server needs."""
SUMS = "SHA256SUMS"


class Packages(NamedTuple):
    """Files that are uploaded."""

    wheel: Path
    sdist: Path


def packages(folder: Path, version: str) -> Packages:
    """The files of a version in the folder of a build."""
    return Packages(
        folder / f"client_lib-{version}-py3-none-any.whl", folder / f"client_lib-{version}.tar.gz"
    )


def build(checkout: Path, folder: Path) -> None:
    """Build wheel and sdist of a checkout. Raises Refused: the build failed."""
    variables = os.environ | {"SOURCE_DATE_EPOCH": committed_at(checkout)}
    line = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    done = subprocess.run(line, cwd=checkout, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"the build failed:\n{done.stderr}")


def build_twice(root: Path, folder: Path) -> None:
    """Build here, into an empty folder, and in a fresh clone of the commit.

    Raises Refused: a file of one build differs from that of the other.
    """
    shutil.rmtree(folder, ignore_errors=True)
    build(root, folder)
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch, "dist")
        other = Path(scratch, "checkout")
        clone(root, other)
        build(other, again)
        for path in sorted(again.iterdir()):
            if digest(path) != digest(folder / path.name):
                raise Refused(
                    f"{path.name} differs from a build in a fresh clone: a file that git ignores, "
                    "or the time or place of the build, is in it"
                )


def write_materials(root: Path, version: str, tool: Path, target: Path) -> None:
    """Write the bill of materials in the format of CycloneDX. `tool` is its program `cyclonedx-py`.

    Raises Refused: the program failed.
    """
    line = [str(tool), "requirements", "--pyproject", "pyproject.toml", "--mc-type", "library"]
    line += ["--output-reproducible", "--output-format", "JSON", "--output-file", str(target)]
    variables = os.environ | {
        "SOURCE_DATE_EPOCH": committed_at(root),
        "PYTHONWARNINGS": "ignore",  # the graph of dependencies is not in a lock file
    }
    done = subprocess.run(
        [*line, LOCK], cwd=root, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Refused(f"the bill of materials failed:\n{done.stderr}")
    materials = json.loads(target.read_text())
    target.write_text(json.dumps(of_version(materials, version), indent=1) + "\n")


def of_version(materials: dict[str, Any], version: str) -> dict[str, Any]:
    """The bill of materials with the version of the project, which pyproject.toml does not have."""
    metadata = materials["metadata"]
    component = metadata["component"] | {
        "version": version,
        "purl": f"pkg:pypi/client-lib@{version}",
    }
    return materials | {"metadata": metadata | {"component": component}}


def write_sums(folder: Path) -> None:
    """Write the digests of all files of a folder, as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{digest(path)}  {path.name}\n" for path in files))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
