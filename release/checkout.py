"""The git checkout that is released: may it be, its commits and its tag."""

import subprocess
from pathlib import Path

from release import changelog, versions

_SHOWN = 5  # changed files that a refusal names


class Refused(Exception):
    """A release that can't begin or go on; the message says why and what helps."""


def check(root: Path, version: str) -> None:
    """Check that `version` may be released from this checkout. Changes nothing.

    Raises:
        Refused: the tree has changes, the tag is there already, a file of `changelog.d` is not
            well formed, or git does not know who commits.
        VersionError: the version has another form, or is not newer.
    """
    versions.check_next(version, versions.read(root))
    if changed := git(root, "status", "--porcelain").splitlines():
        named = ", ".join(line[3:] for line in changed[:_SHOWN])
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise Refused(
            f"the checkout has changes that are not committed ({named}{more}); commit or stash "
            "them first"
        )
    if git(root, "tag", "--list", tag_of(version)):
        raise Refused(
            f"the tag {tag_of(version)} is there already; `git tag -d {tag_of(version)}` removes "
            "one that was never pushed"
        )
    if found := changelog.problems(root / changelog.FOLDER):
        raise Refused(f"{changelog.FOLDER}/{found[0]}")
    git(root, "var", "GIT_COMMITTER_IDENT")


def tag_of(version: str) -> str:
    return f"v{version}"


def head(root: Path) -> str:
    """The commit that is checked out."""
    return git(root, "rev-parse", "HEAD")


def commit_all(root: Path, message: str) -> None:
    """Commit every change, new files among them."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", message)


def add_tag(root: Path, version: str) -> None:
    git(root, "tag", "--annotate", tag_of(version), "--message", f"client_lib {version}")


def committed_at(root: Path) -> str:
    """The time of the commit that is checked out, in seconds since 1970."""
    return git(root, "log", "-1", "--format=%ct")


def clone(root: Path, folder: Path) -> None:
    """Make a checkout that shares no file with this one, with nothing in it but the commit."""
    git(root, "clone", "--quiet", "--no-hardlinks", str(root), str(folder))


def git(root: Path, *words: str) -> str:
    """Run git in a checkout; returns what it prints. Raises Refused: git failed."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")
