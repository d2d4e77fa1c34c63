"""The commit of the code, read from the files of git and compared with what git says."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib import __version__
from client_lib.version import commit_of, described, user_agent

Git = Callable[..., str]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    return folder


@pytest.fixture
def git(checkout: Path) -> Git:
    """Call git in a checkout with one commit; returns what it prints."""

    def call(*words: str) -> str:
        as_user = ["git", "-c", "user.name=ann", "-c", "user.email=ann@example.org", *words]
        done = subprocess.run(as_user, cwd=checkout, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    call("init", "-q", "-b", "main")
    call("commit", "-q", "--allow-empty", "-m", "first")
    return call


def test_a_branch(git: Git, checkout: Path) -> None:
    assert commit_of(str(checkout)) == git("rev-parse", "HEAD")


def test_a_branch_with_a_slash_among_packed_ones(git: Git, checkout: Path) -> None:
    git("tag", "-a", "v1", "-m", "an annotated tag has two lines in the file")
    git("checkout", "-q", "-b", "topic/one")
    git("pack-refs", "--all")
    assert not (checkout / ".git" / "refs" / "heads" / "topic" / "one").exists()
    assert commit_of(str(checkout)) == git("rev-parse", "HEAD")


def test_a_commit_without_a_branch(git: Git, checkout: Path) -> None:
    git("checkout", "-q", "--detach")
    git("commit", "-q", "--allow-empty", "-m", "second")
    assert commit_of(str(checkout)) == git("rev-parse", "HEAD") != git("rev-parse", "main")


def test_a_worktree_has_a_commit_of_its_own(git: Git, checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git("worktree", "add", "-q", "-b", "topic", str(other))
    git("-C", str(other), "commit", "-q", "--allow-empty", "-m", "second")
    assert commit_of(str(other)) == git("rev-parse", "topic") != git("rev-parse", "main")


def test_no_commit_yet_and_no_checkout(tmp_path: Path) -> None:
    assert commit_of(str(tmp_path)) is None
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert commit_of(str(tmp_path)) is None


@pytest.mark.parametrize("head", ["", "ref: ", "ref: refs/heads/..", "not a commit", "\x00\xff"])
def test_a_damaged_head_is_no_commit(tmp_path: Path, head: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head, encoding="latin-1")
    assert commit_of(str(tmp_path)) is None


def test_people_and_servers_read_the_version_with_the_commit() -> None:
    assert described("0.2.0", "0123456789abcdef" * 3) == "0.2.0 (commit 0123456789ab)"
    assert described("0.2.0", None) == "0.2.0"
    assert user_agent("client-lib").startswith(f"client-lib/{__version__}")
