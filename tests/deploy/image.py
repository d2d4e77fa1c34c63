"""The server's image without Docker: the Dockerfile's own install steps and settings, over Debian's
Python.

The Dockerfile is read, so that there is one list of steps: each
`RUN python requirements/install.py ...` is run here as it stands there, with /opt in a folder of
ours.
"""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import images, oci
from tests.cluster.places import Home

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
PYTHON = "/usr/bin/python3"  # of this Debian, as in the image that is the lowest layer
TARGET = "server"


def build(home: Home, workspace: Path, name: str) -> Path:
    """The archive of an image called `name`. Of the packages the layer is kept; the project's is
    made anew.

    The image `python` must be built.
    """
    first, second = install_lines()
    packages = packages_layer(home)
    if not packages.exists():
        made = _layer(workspace, first)
        shutil.copy(made, packages.with_suffix(".new"))
        packages.with_suffix(".new").rename(packages)
    target = workspace / "server.tar"
    project = _layer(workspace, second)
    env, user, entrypoint = settings()
    oci.write(
        target, name, [lowest(home, "python", workspace), packages, project], entrypoint, env, user
    )
    return target


def packages_layer(home: Home) -> Path:
    """Where it is kept, once it was made."""
    return home.images / f"client-lib-packages-{_digest_of_packages()}.tar"


def lowest(home: Home, recipe: str, workspace: Path) -> Path:
    """The only layer of one of the tool's own images, as a file."""
    path = workspace / f"{recipe}.layer"
    with tarfile.open(images.archive(home, images.RECIPES[recipe])) as archive:
        largest = max(archive.getmembers(), key=lambda member: member.size)
        file = archive.extractfile(largest)
        assert file is not None
        with path.open("wb") as out:
            shutil.copyfileobj(file, out)
    return path


def install_lines() -> list[list[str]]:
    """The arguments of each `python` that the Dockerfile runs, packages first."""
    lines = [
        rest for word, rest in instructions() if word == "RUN" and "requirements/install.py" in rest
    ]
    return [shlex.split(line.split("python ", 1)[1]) for line in lines]


def settings() -> tuple[dict[str, str], str, Sequence[str]]:
    """ENV, USER and ENTRYPOINT of the Dockerfile's last stage."""
    found = instructions()
    last = max(place for place, (word, _) in enumerate(found) if word == "FROM")
    assert found[last][1].endswith(f"AS {TARGET}")
    stage = dict(found[last + 1 :])
    env = dict(pair.split("=", 1) for pair in shlex.split(stage["ENV"]))
    return env, stage["USER"], json.loads(stage["ENTRYPOINT"])


def with_defaults(text: str) -> str:
    """The text with each `${NAME}` replaced by the default of that argument of the Dockerfile."""
    arguments = [rest.partition("=") for word, rest in instructions() if word == "ARG"]
    defaults = {name: default for name, _, default in arguments if default}
    return re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], text)


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def _layer(workspace: Path, arguments: Sequence[str]) -> Path:
    """The files that one of these lines installs, as a tar of the image's root."""
    target = next(word for word in arguments if word.startswith("/opt/client-lib/"))
    moved = [str(workspace) + word if word.startswith("/opt/") else word for word in arguments]
    subprocess.run([PYTHON, *moved], cwd=ROOT, check=True)
    tar = workspace / f"{Path(target).name}.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(str(workspace) + target, target.lstrip("/"), filter=_as_root)
    return tar


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _digest_of_packages() -> str:
    names = ("server.txt", "bootstrap.txt", "install.py")
    parts = [(ROOT / "requirements" / name).read_bytes() for name in names]
    version = subprocess.run([PYTHON, "--version"], capture_output=True, check=True).stdout
    return hashlib.sha256(b"".join([*parts, version])).hexdigest()[:12]
