"""`make release VERSION=0.2.0`: everything of a release but the upload.

It commits the release and tags it, writes wheel, sdist, bill of materials and digests into `dist`,
tries the packages, and commits the next version under development. Nothing leaves this machine.
"""

import argparse
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from release import artifacts, changelog, checkout, trial, versions
from release.checkout import Refused
from release.versions import VersionError

ROOT = Path(__file__).resolve().parents[1]
RECORDER = "tests.compat.record"
"""The module that stores the requests and answers of this client and server."""


class Release(NamedTuple):
    """A release that is being made."""

    root: Path
    version: str
    materials_tool: Path
    """The program `cyclonedx-py`."""

    @property
    def dist(self) -> Path:
        return self.root / "dist" / self.version


def main() -> int:
    """Make the release of the command line; return the exit code."""
    options = _parse_arguments()
    release = Release(ROOT, options.version, options.materials_tool)
    try:
        checkout.check(release.root, release.version)
    except (Refused, VersionError) as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    start = checkout.head(release.root)
    try:
        make(release)
    except (Refused, VersionError) as error:
        print(f"no release: {error}", file=sys.stderr)
        print(
            f"nothing is tagged; `git reset --hard {start}` takes back what was written",
            file=sys.stderr,
        )
        return 1
    print_what_follows(release)
    return 0


def make(release: Release) -> None:
    """Make a release of a checkout that was checked. Raises Refused: a step failed."""
    step("the version in all places that repeat it")
    write_version(release.root, release.version)
    step("the recorded requests and answers of this client and server")
    record_requests(release)
    step("changelog.d is joined in CHANGELOG.md")
    join_changelog(release)
    step("the documents")
    run_make(release.root, "docs")
    step("the commit of the release")
    checkout.commit_all(release.root, f"Release {release.version}")
    step("wheel and sdist, built here and in a fresh clone")
    artifacts.build_twice(release.root, release.dist)
    step("the bill of materials")
    write_materials(release)
    packages = artifacts.packages(release.dist, release.version)
    for package in packages:
        step(f"a trial of {package.name} in an empty environment")
        trial.try_package(release.root, package, release.version)
    step(f"the tag {checkout.tag_of(release.version)}")
    checkout.add_tag(release.root, release.version)
    step("the next version under development")
    begin_next(release)


def write_version(root: Path, version: str) -> None:
    """Write a version into each file that names it."""
    texts = {place.file: (root / place.file).read_text() for place in versions.PLACES}
    for file, text in versions.replaced(texts, version).items():
        (root / file).write_text(text)


def record_requests(release: Release) -> None:
    """Store the requests of this client and the answers of this server among the golden files of
    `tests/compat`, which later versions replay.
    """
    run(release.root, sys.executable, "-m", RECORDER, release.version)


def join_changelog(release: Release) -> None:
    """Join the files of changes in the changelog, and remove them."""
    folder = release.root / changelog.FOLDER
    file = release.root / changelog.FILE
    changes = changelog.fragments(folder)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    file.write_text(changelog.joined(file.read_text(), changes, release.version, date))
    for change in changes:
        (folder / change.file).unlink()


def write_materials(release: Release) -> None:
    """Write the bill of materials beside the packages, and the digests of all of them."""
    target = release.dist / f"client_lib-{release.version}.cdx.json"
    artifacts.write_materials(release.root, release.version, release.materials_tool, target)
    artifacts.write_sums(release.dist)


def begin_next(release: Release) -> None:
    """Commit the version under development that follows."""
    version = versions.next_development(release.version)
    write_version(release.root, version)
    run_make(release.root, "docs")
    checkout.commit_all(release.root, f"Begin {version}")


def print_what_follows(release: Release) -> None:
    """Print what is left to do by hand."""
    tag = checkout.tag_of(release.version)
    print(f"== {release.version} is released here: {release.dist.relative_to(release.root)}")
    print(f"next: git push --follow-tags; upload wheel and sdist; build the image of {tag}")


def step(what: str) -> None:
    print(f"== {what}", flush=True)


def run_make(root: Path, target: str) -> None:
    run(root, "make", "--no-print-directory", target)


def run(root: Path, *line: str) -> None:
    """Run a command that shows what it does. Raises Refused: it failed."""
    code = subprocess.run(line, cwd=root, check=False).returncode
    if code:
        raise Refused(f"{' '.join(line)} failed with exit code {code}")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m release", description="Make a release, but do not upload it."
    )
    parser.add_argument("version")
    parser.add_argument("--materials-tool", type=Path, required=True, metavar="CYCLONEDX_PY")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
