"""What may be released, asked of real checkouts of git."""

from pathlib import Path

import pytest

from release import checkout
from release.checkout import Refused, git
from release.versions import VersionError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of version 0.2.0.dev0 without changes."""
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "ann")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "ann@example.org")
    (tmp_path / "client_lib").mkdir()
    (tmp_path / "client_lib" / "__init__.py").write_text('__version__ = "0.2.0.dev0"\n')
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "page.added.md").write_text("A page.\n")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    checkout.commit_all(tmp_path, "First")
    return tmp_path


def test_a_checkout_without_changes_may_be_released(root: Path) -> None:
    checkout.check(root, "0.2.0")


def test_changes_and_new_files_are_named(root: Path) -> None:
    (root / "client_lib" / "__init__.py").write_text('__version__ = "0.2.0.dev0"\n# more\n')
    (root / "new.py").touch()
    with pytest.raises(Refused) as refused:
        checkout.check(root, "0.2.0")
    assert str(refused.value) == (
        "the checkout has changes that are not committed (client_lib/__init__.py, new.py); commit "
        "or stash them first"
    )


def test_many_changes_are_counted(root: Path) -> None:
    for number in range(7):
        (root / f"{number}.py").touch()
    with pytest.raises(Refused, match=r"\(0\.py, 1\.py, 2\.py, 3\.py, 4\.py and 2 more\)"):
        checkout.check(root, "0.2.0")


def test_a_wrong_version_is_refused(root: Path) -> None:
    with pytest.raises(VersionError, match="three numbers, such as"):
        checkout.check(root, "0.2")
    with pytest.raises(VersionError, match=r"older than the version of this checkout, 0\.2\.0"):
        checkout.check(root, "0.1.0")


def test_a_version_that_has_its_tag_is_refused(root: Path) -> None:
    checkout.add_tag(root, "0.2.0")
    with pytest.raises(Refused, match=r"the tag v0\.2\.0 is there already"):
        checkout.check(root, "0.2.0")
    checkout.check(root, "0.2.1")


def test_a_file_of_a_change_that_is_not_well_formed_is_refused(root: Path) -> None:
    (root / "changelog.d" / "page.better.md").write_text("A page.\n")
    checkout.commit_all(root, "Second")
    with pytest.raises(Refused, match=r"changelog\.d/page\.better\.md is not named"):
        checkout.check(root, "0.2.0")


def test_a_clone_has_the_commit_and_no_file_that_git_ignores(root: Path, tmp_path: Path) -> None:
    (root / ".gitignore").write_text("ignored\nother\n")
    checkout.commit_all(root, "Second")
    (root / "ignored").touch()
    checkout.clone(root, tmp_path / "other")
    assert checkout.head(tmp_path / "other") == checkout.head(root)
    assert not (tmp_path / "other" / "ignored").exists()
