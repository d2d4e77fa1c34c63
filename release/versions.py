"""The version of the project: its form, the one that follows, and every place that repeats it.

`client_lib/__init__.py` defines it. Images and the chart have the version of the code that they
hold, so the documents and manifests that name them change with it.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

RELEASED = re.compile(r"\d+\.\d+\.\d+")
"""The form of a released version; one under development ends with `.dev0`."""


def semantic(version: str) -> str:
    """The version in the form of Semantic Versioning, which Helm wants of a chart."""
    return version.replace(".dev", "-dev")


class Place(NamedTuple):
    """A text that holds the version."""

    file: str
    """Relative to the root of the project."""
    pattern: str
    """A regular expression. Its only group is the version; each match in the file is one."""
    spelled: Callable[[str], str] = str


DEFINITION = Place("client_lib/__init__.py", r'(?m)^__version__ = "(.+)"$')
PLACES = (
    DEFINITION,
    Place("Dockerfile", r'image\.version="(.+?)"'),
    Place("README.md", r"/client-lib-server:(\S+)"),
    Place("docs/kubernetes.md", r"/client-lib-server:(\S+)"),
    Place("k8s/chart/Chart.yaml", r"(?m)^appVersion: (\S+)"),
    Place("k8s/chart/Chart.yaml", r"(?m)^version: (\S+)", semantic),
    Place("k8s/overlays/production/kustomization.yaml", r"/client-lib-server, newTag: ([^\s,}]+)"),
)


class VersionError(Exception):
    """A version that can't be released, or a file that does not name the version."""


def next_development(version: str) -> str:
    """The version under development after a released one: `0.2.0` is followed by `0.3.0.dev0`."""
    major, minor, _ = version.split(".")
    return f"{major}.{int(minor) + 1}.0.dev0"


def check_next(version: str, present: str) -> None:
    """Check that `version` may be released from a checkout of version `present`.

    Raises:
        VersionError: it has another form than `1.2.3`, or is older than the present version.
    """
    if not RELEASED.fullmatch(version):
        raise VersionError(f"{version!r} is no version to release: three numbers, such as 0.2.0")
    if _numbers(version) < _numbers(present):
        raise VersionError(f"{version} is older than the version of this checkout, {present}")
    if RELEASED.fullmatch(present):
        raise VersionError(
            f"this checkout is of version {present}, which is released: a version under "
            "development ends with .dev0"
        )


def read(root: Path) -> str:
    """The version that the sources of a checkout define."""
    return found(DEFINITION, (root / DEFINITION.file).read_text())[0]


def found(place: Place, text: str) -> list[str]:
    """The versions that the text of a place's file holds. Raises VersionError: it holds none."""
    versions = re.findall(place.pattern, text)
    if not versions:
        raise VersionError(f"{place.file} names no version where {place.pattern} looks for it")
    return versions


def replaced(texts: Mapping[str, str], version: str) -> dict[str, str]:
    """The texts of all places' files with another version; both mappings are by file.

    Raises VersionError: a place holds no version.
    """
    result = dict(texts)
    for place in PLACES:
        found(place, result[place.file])
        result[place.file] = _with_version(result[place.file], place, place.spelled(version))
    return result


def _with_version(text: str, place: Place, version: str) -> str:
    """The text with `version` in the group of each match."""

    def replacement(match: re.Match[str]) -> str:
        return match[0].replace(match[1], version)

    return re.sub(place.pattern, replacement, text)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
