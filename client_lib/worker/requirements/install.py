"""Makes the environment of a job, or finds it: a process of its own, which the launcher starts and can kill.

What pip says goes to stdout, and so into the job's log; what came of it into environment.json: {"prefix", "python"}, or
{"failed": a sentence}. Standard library only, Python >= 3.8.
"""

import json
import os
import shutil
import subprocess
from typing import Dict, List

from client_lib.worker.directory import MARKER, write_json
from client_lib.worker.requirements.environment import Environment, Parent, key_of, make_room
from client_lib.worker.requirements.failure import why

_ASK = """
import json, os, site, sys
paths = site.getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])
print(json.dumps([sys.version, [path for path in dict.fromkeys(paths) if os.path.isdir(path)]]))
"""
_LINK = "_client_lib_parent.pth"
_QUIET = ("Requirement already satisfied:", "Looking in ")
_KEPT_LINES = 400
# settings of pip that would put packages elsewhere, and of Python that would let it see what the job does not
_DROPPED = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PYTHONPATH", "PYTHONHOME")


class NotInstalled(Exception):
    """Why not: a sentence."""


def find_or_make(
    folder: str, limit_bytes: int, python: str, requirements: List[str], variables: Dict[str, str]
) -> Environment:
    """The complete environment. `variables`: the job's, for pip's own settings and proxies.

    Raises NotInstalled, OSError.
    """
    variables = {name: value for name, value in variables.items() if name not in _DROPPED}
    os.makedirs(folder, mode=0o700, exist_ok=True)
    parent = _ask(python, variables)
    found = Environment(folder, key_of(parent, requirements))
    in_use = found.use()
    if in_use is not None:
        os.close(in_use)
        return found
    with found.alone(wait=True):
        if found.facts() is None:  # nobody has made it while we waited
            _make(found, parent, requirements, variables)
    make_room(folder, limit_bytes, found.folder)
    return found


def main(result: str, **asked: object) -> int:
    """The process. `result`: where it says what came of it."""

    try:
        found = find_or_make(**asked)  # type: ignore[arg-type]
    except (NotInstalled, OSError) as error:
        write_json(result, {"failed": str(error)})
        return 1
    write_json(result, {"prefix": found.prefix, "python": found.python, "folder": found.folder})
    return 0


def _ask(python: str, variables: Dict[str, str]) -> Parent:
    path = shutil.which(python, path=variables.get("PATH"))
    if path is None:
        raise NotInstalled("there is no %s to install packages for" % python)
    done = subprocess.run(
        [path, "-c", _ASK], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False
    )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise NotInstalled("%s does not say where its packages are: %s" % (python, said[-1] if said else "no word"))
    version, paths = json.loads(done.stdout.splitlines()[-1])
    return Parent(os.path.abspath(path), version, paths)


def _make(found: Environment, parent: Parent, requirements: List[str], variables: Dict[str, str]) -> None:
    found.remove()
    try:
        os.makedirs(found.folder)
        _run([parent.python, "-I", "-m", "venv", "--without-pip", found.prefix], variables)
        _put_before(found, parent)
        listed = os.path.join(found.folder, "requirements.txt")
        with open(listed, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in requirements)
        _have_pip(found, variables)
        options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-warn-script-location"]
        _run([found.python, "-m", "pip", "install", *options, "-r", listed], _inside(found, variables))
        found.declare_complete(parent, requirements)
    except BaseException:
        found.remove()
        raise


def _put_before(found: Environment, parent: Parent) -> None:
    """The new environment's own packages are found first, then the parent's, with what their .pth files say. Not venv's
    own --system-site-packages: behind a virtual environment that shows the packages of its base, not its own."""
    lib = os.path.join(found.prefix, "lib")
    (version,) = [name for name in os.listdir(lib) if name.startswith("python")]
    with open(os.path.join(lib, version, "site-packages", _LINK), "w", encoding="ascii") as file:
        file.writelines("import site; site.addsitedir(%s)\n" % ascii(path) for path in parent.paths)


def _have_pip(found: Environment, variables: Dict[str, str]) -> None:
    """The parent's pip installs into the new environment; where it has none, one is put there."""
    inside = _inside(found, variables)
    ways = [[found.python, "-I", "-m", "ensurepip", "--default-pip"]]
    uv = shutil.which("uv", path=variables.get("PATH"))
    if uv is not None:
        ways.append([uv, "pip", "install", "--python", found.python, "pip"])
    for way in [None, *ways]:
        if way is not None:
            subprocess.run(way, env=inside, stdin=subprocess.DEVNULL, check=False)
        question = [found.python, "-c", "import pip"]
        if subprocess.run(question, env=inside, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return
    raise NotInstalled("the interpreter has no pip, and there is no uv in PATH to install with")


def _inside(found: Environment, variables: Dict[str, str]) -> Dict[str, str]:
    return {**variables, **activated(found.prefix, variables), "PIP_USER": "0"}


def activated(prefix: str, variables: Dict[str, str]) -> Dict[str, str]:
    """What is set where an environment is active."""
    path = os.path.join(prefix, "bin")
    return {"VIRTUAL_ENV": prefix, "PATH": path + (os.pathsep + variables["PATH"] if variables.get("PATH") else "")}


def _run(argv: List[str], variables: Dict[str, str]) -> None:
    """Say what it says, and raise NotInstalled with the reason where it fails."""
    process = subprocess.Popen(
        argv, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    lines: List[str] = []
    for raw in process.stdout:
        line = raw.decode("utf-8", "replace").rstrip()
        lines = [*lines[-_KEPT_LINES:], line]
        if not line.startswith(_QUIET):
            os.write(1, line.encode("utf-8", "replace") + b"\n")
    if process.wait():
        raise NotInstalled(why(lines))


def marked(variables: Dict[str, str], directory: str) -> Dict[str, str]:
    """So that whoever sweeps up after a dead launcher finds what runs here."""
    return {**variables, MARKER: directory}
