"""Make a virtual environment that holds exactly the locked packages of one requirements file.

    python3 requirements/install.py .venv requirements/dev.txt --project
    python3 requirements/install.py .venv-bench requirements/bench.txt --behind .venv
    python3 requirements/install.py /opt/installer requirements/server.txt --into
    /opt/client-lib/packages

The Makefile and the Dockerfile call it; it needs nothing but Python's standard library. Every
package is checked against the hashes of the lock file, and installed by uv, which comes out of
requirements/bootstrap.txt by pip in the same way. Indexes, mirrors and certificates are those that
pip is configured with on this machine: no file here names any.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

OLDEST = (3, 10)
REQUIREMENTS = Path(__file__).parent
PROJECT = REQUIREMENTS.parent
OWN_SOURCES = ("client_lib", "server_stub")


def main() -> None:
    options = _parse_arguments()
    python = _make_environment(options.environment)
    _run(
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--require-hashes",
        "-r",
        str(REQUIREMENTS / "bootstrap.txt"),
    )
    variables = os.environ | _uv_settings(_pip_settings(python))
    locked = ("--require-hashes", "--compile-bytecode", "-r", str(options.lock))
    if options.into and options.project:
        _copy_project(python, variables, options)
    elif options.into:
        _uv(python, variables, "--target", str(options.into), *locked)
    else:
        _install(options, python, variables, locked)


def _install(
    options: argparse.Namespace, python: str, variables: dict[str, str], locked: tuple[str, ...]
) -> None:
    _uv(python, variables, *locked)
    if options.behind:
        _see_packages_of(options.behind, python)
    if options.project:
        _uv(python, variables, "--no-build-isolation", "--no-deps", "-e", str(PROJECT))
        _run(python, "-m", "compileall", "-q", *(str(PROJECT / name) for name in OWN_SOURCES))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Make a virtual environment from a lock file with hashes."
    )
    parser.add_argument("environment", type=Path)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--project", action="store_true", help="install this project too, editable")
    parser.add_argument(
        "--into",
        type=Path,
        help="a folder for PYTHONPATH where the packages go, or with --project a copy of this "
        "project alone, built by the locked back end; the environment holds but the installer",
    )
    parser.add_argument(
        "--behind",
        type=Path,
        help="another environment whose packages this one sees behind its own",
    )
    return parser.parse_args()


def _make_environment(path: Path) -> str:
    """The environment's interpreter; it is made anew where it is missing or its
    base interpreter is gone.
    """
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(
            f"{sys.executable} is Python {found}; {'.'.join(map(str, OLDEST))} or newer is "
            "needed: make PYTHON=..."
        )
    python = path / "bin" / "python"
    if not _answers(python):
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(path)], check=False)
        if made.returncode != 0:
            sys.exit(f"{sys.executable} -m venv failed; on Debian: apt-get install python3-venv")
    return str(python)


def _answers(python: Path) -> bool:
    return (
        python.exists()
        and subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0
    )


def _pip_settings(python: str) -> dict[str, str]:
    """What pip is configured with (files and PIP_ variables); a PIP_ variable wins, then
    [install], then [global].
    """
    listing = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in found:
            found[section][name] = value.strip("'\"")
    return found["global"] | found["install"] | found[":env:"]


def _uv_settings(pip: dict[str, str]) -> dict[str, str]:
    """The same for uv, which reads none of pip's settings. A UV_ variable
    that is set already stays.
    """
    wanted = {
        "UV_DEFAULT_INDEX": pip.get("index-url", ""),
        "UV_INDEX": " ".join(pip.get("extra-index-url", "").replace("\\n", " ").split()),
        "UV_FIND_LINKS": ",".join(
            _reachable_links(pip.get("find-links", "").replace("\\n", " ").split())
        ),
        "UV_HTTP_TIMEOUT": pip.get("default-timeout", ""),
        "SSL_CERT_FILE": pip.get("cert", ""),
    }
    return {name: value for name, value in wanted.items() if value and name not in os.environ}


def _reachable_links(links: list[str]) -> list[str]:
    """pip warns of a folder that isn't there, uv stops."""
    return [link for link in links if "://" in link or Path(link).exists()]


def _see_packages_of(other: Path, python: str) -> None:
    """One line in a .pth file: the other environment's packages come behind
    this one's own on sys.path.
    """
    scheme = {"base": str(other.absolute()), "platbase": str(other.absolute())}
    theirs = sysconfig.get_path(
        "purelib", "venv" if sys.version_info >= (3, 11) else "posix_prefix", vars=scheme
    )
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    ours = subprocess.run(
        [python, "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()
    Path(ours, "packages_behind.pth").write_text(theirs + "\n")


def _copy_project(python: str, variables: dict[str, str], options: argparse.Namespace) -> None:
    """As its wheel; what builds it is what the lock file says."""
    how = ("--no-deps", "--compile-bytecode", "--build-constraints", str(options.lock))
    _uv(python, variables, "--target", str(options.into), *how, str(PROJECT))


def _uv(python: str, variables: dict[str, str], *arguments: str) -> None:
    command = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python, *arguments]
    _run(*command, variables=variables)


def _run(*command: str, variables: dict[str, str] | None = None) -> None:
    ended = subprocess.run(command, env=variables, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with exit code {ended.returncode}")


if __name__ == "__main__":
    main()
