"""Extra packages of a job: installed once per worker, into an environment that later workers of
this machine use again.

An environment is a virtual one whose packages come before those of the job's interpreter (which may
be a virtual one itself): packages that the interpreter has are not installed again and stay
unchanged. The cache of environments:

    <folder>/<key>/env/             the virtual environment
    <folder>/<key>/complete.json    {"requirements", "python", "bytes"}; touched at each use
    <folder>/<key>.lock             shared: in use; exclusive: being made or removed

The key is a digest of the interpreter, its installed packages and the requirements: after a change
of one of these it is another environment. Environments are found or made in a process that the
launcher starts and can kill. pip's output goes to its stdout, and so into the job's log; the result
goes to environment.json: {"folder"}, or {"failed": message}. The process is forked without exec:
the launcher may be a zipapp, whose interpreter runs without the `site` module.
"""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Sequence

from client_lib.durable import (
    locked,
    make_private_folders,
    private,
    read_json,
    remove,
    says_full,
    sha256_of,
    size_of,
    take,
    write_json,
)
from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.reasons import START_FAILED, STORAGE_FULL, CannotStart
from client_lib.worker.ranks import Run

_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")
_ASK = """
import json, os, site, sys
paths = site.getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])
print(json.dumps([sys.version, [path for path in dict.fromkeys(paths) if os.path.isdir(path)]]))
"""
_LIMIT_BYTES = 20 * 2**30  # for all cached environments; the least recently used are removed
_LINK = "_client_lib_parent.pth"
_PAUSE_S = 0.1
"""Between two looks at an environment that another worker makes."""
_QUIET = ("Requirement already satisfied:", "Looking in ")
_KEPT_LINES = 400
# variables that make pip install elsewhere, or make Python see packages that the job does not
_DROPPED = (
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
    "PIP_REQUIRE_VIRTUALENV",
    "PYTHONPATH",
    "PYTHONHOME",
)
_UNREACHABLE = (
    "Failed to establish a new connection|Name or service not known|Temporary failure in name "
    "resolution|Network is unreachable|Connection "
    "refused|ConnectTimeoutError|ReadTimeoutError|ProxyError|SSLError"
)


# --- the cache


class Parent(NamedTuple):
    """The interpreter to which packages are added."""

    python: str
    """Absolute."""
    version: str
    paths: List[str]
    """Folders of its packages, in the order of sys.path."""


def key_of(parent: Parent, requirements: List[str]) -> str:
    """Reads the names of the parent's packages, and the content of requirements that are files or
    folders here: these are identified by it, not by their paths."""
    installed = sorted(
        name for path in parent.paths for name in os.listdir(path) if name.endswith(_INSTALLED)
    )
    wanted = sorted(_with_content(line) if os.path.isabs(line) else line for line in requirements)
    return _digest([*parent, installed, wanted])[:24]


def _with_content(path: str) -> str:
    if os.path.isfile(path):
        return "%s %s" % (os.path.basename(path), sha256_of(path))
    if not os.path.isdir(path):
        return path
    files = sorted(os.path.join(below, name) for below, _, names in os.walk(path) for name in names)
    listed = [
        (os.path.relpath(file, path), sha256_of(file)) for file in files if os.path.isfile(file)
    ]
    return "%s %s" % (os.path.basename(path), _digest(listed))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


class PackageEnvironment:
    """One environment, which may not exist yet."""

    def __init__(self, folder: str, key: str) -> None:
        self.folder = os.path.join(folder, key)
        self.prefix = os.path.join(self.folder, "env")
        self.python = os.path.join(self.prefix, "bin", "python")
        self.lock = self.folder + ".lock"
        self.complete = os.path.join(self.folder, "complete.json")

    def facts(self) -> Optional[Dict[str, Any]]:
        """Content of complete.json; None: the environment is not complete."""
        return read_json(self.complete)

    def use(self) -> Optional[int]:
        """A descriptor that prevents its removal while it is open; None: the environment is not
        complete, or is being made or removed, which a launcher must not wait for."""
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
        if not take(fd, fcntl.LOCK_SH) or self.facts() is None:
            os.close(fd)
            return None
        with contextlib.suppress(OSError):  # read-only, or another user's
            os.utime(self.complete)
        return fd

    def remove(self) -> None:
        """Remove it; the caller holds the exclusive lock."""
        remove(self.complete)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def used_at(self) -> float:
        try:
            return os.stat(self.complete).st_mtime
        except FileNotFoundError:
            return 0.0


def make_room(folder: str, limit_bytes: int, but: str) -> None:
    """Remove incomplete environments, then the least recently used until the rest
    fits; none in use, nor `but`.
    """
    keys = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    found = sorted((PackageEnvironment(folder, key) for key in keys), key=lambda one: one.used_at)
    sizes = [(one, (one.facts() or {}).get("bytes")) for one in found]
    total = sum(size or 0 for _, size in sizes)
    for one, size in sizes:
        if one.folder != but and (size is None or total > limit_bytes):
            with locked(one.lock, wait=False) as mine:
                if mine and (size is not None or one.facts() is None):  # it may be complete by now
                    one.remove()
                    total -= size or 0


# --- the installation


class NotInstalled(Exception):
    """Packages could not be installed; the message is for people."""


def find_or_make(
    folder: str, python: str, requirements: List[str], variables: Dict[str, str]
) -> PackageEnvironment:
    """The complete environment. `variables`: the job's variables, with the variables of pip and
    proxies. Raises NotInstalled, OSError.
    """
    variables = {name: value for name, value in variables.items() if name not in _DROPPED}
    make_private_folders(folder)
    parent = _ask(python, variables)
    found = PackageEnvironment(folder, key_of(parent, requirements))
    told = False
    while found.facts() is None:
        with locked(found.lock, wait=False) as is_ours:
            if is_ours and found.facts() is None:
                _make(found, parent, requirements, variables)
                make_room(folder, _LIMIT_BYTES, found.folder)
        if not is_ours:
            # Another worker makes it. That launcher takes the shared lock as soon as it is
            # complete, and starts no rank before this worker is ready: a wait for the exclusive
            # lock may never end. There is no deadline: a build may take hours, and the kernel frees
            # the lock of a dead worker.
            if not told:
                told = True
                os.write(1, b"waits for another worker, which installs the same packages\n")
            time.sleep(_PAUSE_S)
    return found


def _ask(python: str, variables: Dict[str, str]) -> Parent:
    path = shutil.which(python, path=variables.get("PATH"))
    if path is None:
        raise NotInstalled("there is no %s to install packages for" % python)
    done = subprocess.run([path, "-c", _ASK], env=variables, capture_output=True, check=False)
    if done.returncode:
        errors = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise NotInstalled(
            "%s can't list its packages: %s" % (python, errors[-1] if errors else "no message")
        )
    version, paths = json.loads(done.stdout.splitlines()[-1])
    return Parent(os.path.abspath(path), version, paths)


def _make(
    found: PackageEnvironment, parent: Parent, requirements: List[str], variables: Dict[str, str]
) -> None:
    inside = {**variables, **activated(found.prefix, variables), "PIP_USER": "0"}
    found.remove()
    try:
        make_private_folders(found.folder)
        _run([parent.python, "-I", "-m", "venv", "--without-pip", found.prefix], variables)
        # the parent's packages, with their .pth files, after the new environment's own: venv's
        # --system-site-packages would add the packages of the base interpreter, not of a parent
        # that is a virtual environment
        (site_packages,) = glob.glob(
            os.path.join(glob.escape(found.prefix), "lib", "python*", "site-packages")
        )
        with open(os.path.join(site_packages, _LINK), "w", encoding="ascii") as file:
            file.writelines(
                "import site; site.addsitedir(%s)\n" % ascii(path) for path in parent.paths
            )
        listed = os.path.join(found.folder, "requirements.txt")
        with open(listed, "w", encoding="utf-8", opener=private) as file:
            file.writelines(line + "\n" for line in requirements)
        _have_pip(found.python, inside)
        options = [
            "--disable-pip-version-check",
            "--no-input",
            "--progress-bar",
            "off",
            "--no-warn-script-location",
        ]
        _run([found.python, "-m", "pip", "install", *options, "-r", listed], inside)
        facts = {
            "python": parent.python,
            "requirements": requirements,
            "bytes": size_of(found.folder),
        }
        write_json(found.complete, facts, durable=True)
    except BaseException:
        found.remove()
        raise


def _have_pip(python: str, variables: Dict[str, str]) -> None:
    """Install pip into the new environment unless the parent has one."""
    ways = [[python, "-I", "-m", "ensurepip", "--default-pip"]]
    uv = shutil.which("uv", path=variables.get("PATH"))
    if uv is not None:
        ways.append([uv, "pip", "install", "--python", python, "pip"])
    for way in [None, *ways]:
        if way is not None:
            subprocess.run(way, env=variables, stdin=subprocess.DEVNULL, check=False)
        question = [python, "-c", "import pip"]
        if (
            subprocess.run(
                question, env=variables, stderr=subprocess.DEVNULL, check=False
            ).returncode
            == 0
        ):
            return
    raise NotInstalled("the interpreter has no pip, and there is no uv in PATH to install with")


def activated(prefix: str, variables: Dict[str, str]) -> Dict[str, str]:
    path = os.path.join(prefix, "bin")
    return {
        "VIRTUAL_ENV": prefix,
        "PATH": path + (os.pathsep + variables["PATH"] if variables.get("PATH") else ""),
    }


def _run(argv: List[str], variables: Dict[str, str]) -> None:
    """Run the command and print its output. Raises NotInstalled with the reason if it fails."""
    process = subprocess.Popen(
        argv,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
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


# --- explanation of a failure


def why(lines: Sequence[str]) -> str:
    """The reason why pip failed, from its output; names the package."""
    text = "\n".join(lines)
    if found := re.search(r"ERROR: No matching distribution found for (.+)", text):
        versions = re.search(r"satisfies the requirement .+ \(from versions: (.+)\)", text)
        if versions and versions[1] != "none":
            known = versions[1].split(", ")
            shown = ", ".join((["..."] if len(known) > 5 else []) + known[-5:])
            return "no version of %s is there; there are: %s" % (found[1], shown)
        if re.search(_UNREACHABLE, text):
            return "%s was not found: the package index can't be reached" % found[1]
        return (
            "%s was not found: the package index has no such package for this interpreter"
            % found[1]
        )
    if found := re.search(
        r"ERROR: Cannot install (.+) because these package versions have conflicting", text
    ):
        reasons = re.search(r"The conflict is caused by:\n((?: {4}.+\n?)+)", text)
        because = "; ".join(line.strip() for line in reasons[1].splitlines()) if reasons else ""
        return "%s can't be installed together%s" % (found[1], ": " + because if because else "")
    if found := re.search(r"ERROR: Invalid requirement: (.+)", text):
        return "%s is no requirement as pip understands it" % found[1].split(":")[0].strip()
    if found := re.search(
        r"ERROR: Failed to build .*?'([^']+)'|Failed building wheel for (\S+)", text
    ):
        errors = [line.strip() for line in lines if re.match(r"\s*(\w*Error|error): ", line)]
        ends = ": " + errors[-1] if errors else "; the log has the output of its build"
        return "%s could not be built%s" % (found[1] or found[2], ends)
    errors = [line for line in lines if line.startswith("ERROR:")] or [
        line for line in lines if line.strip()
    ]
    return errors[-1].replace("ERROR: ", "", 1).strip() if errors else "pip ended without a message"


# --- the launcher's side


def installer(plan: WorkerPlan, directory: Directory) -> Run:
    """A function for a new process that finds or makes the environment of the
    plan, and ends the process.
    """

    def run(_: List[str], environment: Dict[str, str]) -> NoReturn:
        os.dup2(1, 2)
        os.closerange(3, 65536)  # the launcher's descriptors, its lock among them
        assert plan.environments_dir is not None
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        python = plan.requirements_python or plan.python or "python3"
        # `./wheels/one.whl` is a file of the snapshot
        wanted = [
            os.path.join(directory.work, one[2:]) if one.startswith("./") else one
            for one in plan.requirements
        ]
        try:
            found = find_or_make(plan.environments_dir, python, wanted, environment)
            result = {"folder": found.folder}
        except (NotInstalled, OSError) as error:
            result = {"failed": str(error)}
        write_json(directory.environment, result)
        os._exit(0)

    return run


def result(plan: WorkerPlan, directory: Directory) -> Optional[WorkerPlan]:
    """The plan with the environment that the process has found, which stays as long as this process
    lives; None: the environment was removed since. Raises CannotStart: there is none."""
    made = read_json(directory.environment) or {"failed": "its process died"}
    if "failed" in made:
        problem = made["failed"]
        shown = ", ".join(plan.requirements)
        is_full = says_full(problem)
        where = " in %s" % plan.environments_dir if is_full else ""
        message = "requirements=[%s] can't be installed%s: %s" % (shown, where, problem)
        raise CannotStart(STORAGE_FULL if is_full else START_FAILED, message)
    found = PackageEnvironment(*os.path.split(made["folder"]))
    if found.use() is None:  # otherwise the descriptor stays open
        return None
    environment = {**plan.environment, **activated(found.prefix, plan.environment)}
    return plan._replace(python=found.python if plan.python else None, environment=environment)
