"""What a submit reads of git, in real repositories."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib.spec.request import DIFF_MAX
from client_lib.submit import git_reading
from client_lib.submit.git_reading import GitReading, files_of
from tests.kit.bounds import Bounds
from tests.kit.waiting import until


@pytest.fixture(autouse=True)
def _patient(bounds: Bounds) -> None:
    """The load of a machine must not fail a test."""
    bounds(git_reading, PATIENCE_S=60.0)


def git(folder: Path, *words: str) -> str:
    as_user = ["git", "-c", "user.name=ann", "-c", "user.email=ann@example.org", *words]
    return subprocess.run(
        as_user, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    git(root, "init", "-q", "-b", "wide/branch")
    (root / "src" / "train.py").write_text("print(1)\n")
    (root / ".gitignore").write_text("data\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    git(root, "remote", "add", "origin", "https://ann:t0ken@git.example.org/x.git?private=1")
    return root


def test_the_commit_and_changed_and_new_files_can_be_made_again_from_the_record(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "src" / "train.py").write_text("print(2)\n")
    (repository / "src" / "new file.py").write_text("x = 1")
    (repository / "data").write_text("ignored")
    found = GitReading(repository / "src").result
    assert (found.commit, found.branch, found.missing) == (
        git(repository, "rev-parse", "HEAD"),
        "wide/branch",
        None,
    )
    assert found.remote == "https://git.example.org/x.git"
    git(tmp_path, "clone", "-q", str(repository), "again")
    (tmp_path / "patch").write_text(found.diff or "")
    git(tmp_path / "again", "apply", str(tmp_path / "patch"))
    assert (tmp_path / "again/src/train.py").read_text() == "print(2)\n"
    assert (tmp_path / "again/src/new file.py").read_text() == "x = 1"
    assert not (tmp_path / "again/data").exists()


def test_a_clean_repository_has_an_empty_patch_and_a_folder_outside_of_git_none(
    repository: Path, tmp_path: Path
) -> None:
    assert GitReading(repository).result.diff == ""
    outside = GitReading(tmp_path).result
    assert (outside.commit, outside.diff, outside.missing) == (None, None, None)


def test_a_repository_without_a_commit_is_no_error(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    found = GitReading(tmp_path).result
    assert (found.commit, found.diff, found.missing) == (None, None, None)


def test_a_large_patch_is_cut_and_a_program_of_the_configuration_is_not_run(
    repository: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "diff.external"):
        git(repository, "config", name, str(program))
    (repository / "src" / "train.py").write_text("x = 1\n" * 200_000)
    found = GitReading(repository).result
    assert len(found.diff or "") == DIFF_MAX
    assert "first 262144 characters" in (found.missing or "")
    assert not (tmp_path / "was-run").exists()


def test_a_submit_by_a_hook_of_another_repository_is_read_as_what_it_is(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "src" / "train.py").write_text("print(2)\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert "+print(2)" in (GitReading(repository).result.diff or "")


def test_worktrees_packed_branches_and_commits_without_a_branch_are_found(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    found = GitReading(tmp_path / "tree").result
    assert (found.commit, found.branch) == (git(repository, "rev-parse", "other"), "other")
    git(repository, "pack-refs", "--all")
    assert GitReading(repository).result.commit == found.commit
    (repository / ".git" / "packed-refs").write_text(f"{'1' * 40} refs/heads/wide/branch\n")
    git(repository, "update-ref", "refs/heads/wide/branch", found.commit or "")
    assert GitReading(repository).result.commit == found.commit
    git(repository, "checkout", "-q", "--detach")
    detached = GitReading(repository).result
    assert (detached.commit, detached.branch, detached.remote) == (
        found.commit,
        None,
        "https://git.example.org/x.git",
    )


def own_git(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script before the git of PATH, which it calls as `$git`."""
    program = folder / "git"
    program.write_text(f"#!/bin/sh\ngit={shutil.which('git')}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_slow_git_is_waited_for_once_and_ended(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: Bounds
) -> None:
    (tmp_path / "pids").touch()  # on a busy machine git may be ended before it writes
    own_git(tmp_path, f"echo $$ >> {tmp_path}/pids\nexec sleep 100", monkeypatch)
    bounds(git_reading, PATIENCE_S=0.5, PATIENCE_AGAIN_S=0.01)
    for patience in ("0.5", "0.01"):
        found = GitReading(repository).result
        assert (found.branch, found.diff) == ("wide/branch", None)
        assert found.missing == (
            "of the uncommitted changes the changed files and the new files are not known: git "
            f"took more than the {patience} s that a submit waits for it"
        )
    pids = (tmp_path / "pids").read_text().split()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the end of git")


def test_what_git_has_read_is_kept_where_a_part_is_late(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: Bounds
) -> None:
    (repository / "src" / "train.py").write_text("print(2)\n")
    (repository / "new.py").write_text("print(3)\n")
    script = f"""
    case "$*" in
      *ls-files*) exec sleep 100 ;;
      *HEAD) "$git" "$@"; touch {tmp_path}/read ;;
    esac"""
    own_git(tmp_path, script, monkeypatch)
    reading = GitReading(repository)
    until((tmp_path / "read").exists, "the patch of the changed file")
    bounds(git_reading, PATIENCE_S=2.0)
    found = reading.result
    assert [names for names, _ in files_of(found.diff or "")] == [["src/train.py"]]
    assert found.missing == (
        "of the uncommitted changes the new files are not known: git took more than the 2 s that a "
        "submit waits for it"
    )


def test_changes_are_not_known_where_git_fails(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as in a folder of another user, which git does not read unless it is told to."""
    own_git(tmp_path, "exit 128", monkeypatch)
    for path in (os.environ["PATH"], "/nowhere"):
        monkeypatch.setenv("PATH", path)
        found = GitReading(repository).result
        assert found.diff is None
        assert found.missing == (
            f"the uncommitted changes are not known: `git diff HEAD` fails in {repository}"
        )


def test_a_new_file_that_is_named_like_an_option_is_a_file(repository: Path) -> None:
    (repository / "--output=kept.txt").write_text("new\n")
    (repository / "kept.txt").write_text("kept\n")
    assert "+new" in (GitReading(repository).result.diff or "")
    assert (repository / "kept.txt").read_text() == "kept\n"


def test_names_of_files_are_read_whatever_git_is_configured_to_write(repository: Path) -> None:
    names = ["src/train.py", "\u0434\u0430.py", 'a "b/c.py', "two b/words"]
    for name in names:
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("x\n")
    for option in ("core.quotePath=true", "diff.mnemonicPrefix=true", "diff.noprefix=true"):
        git(repository, "config", *option.split("="))
        diff = GitReading(repository).result.diff or ""
        assert f"diff --git a/{names[1]} b/{names[1]}\n" in diff  # so that `git apply` reads it
        found = files_of(diff)
        assert sorted(name for of_file, _ in found for name in of_file) == sorted(names)
    git(repository, "config", "--unset", "diff.noprefix")
    git(repository, "add", "-A")
    # of older clients
    for option in ("diff.noprefix=false", "diff.noprefix=true", "diff.mnemonicPrefix=true"):
        found = files_of(git(repository, "-c", option, "diff", "HEAD"))
        assert sorted(name for of_file, _ in found for name in of_file) == sorted(names)
    git(repository, "commit", "-qm", "two")
    git(repository, "mv", names[1], "new name")
    assert [of_file for of_file, _ in files_of(git(repository, "diff", "HEAD"))] == [
        [names[1], "new name"]
    ]


def test_files_that_never_travel_are_not_in_the_patch(repository: Path) -> None:
    (repository / "pkg").mkdir()
    ours = ["src/train.py", "new.py", "pkg/new.py"]
    secret = [
        ".env",
        ".envrc",
        "pkg/.netrc",
        "pkg/.env.local",
        "pkg/.env/key",
        "keys/a",
        "src/mine.txt",
        "pkg/mine.txt",
    ]
    for step in ("tracked", "changed"):
        for name in (*ours, *secret):
            (repository / name).parent.mkdir(exist_ok=True)
            (repository / name).write_text(f"{step}\n")
        if step == "tracked":
            (repository / ".clientlibignore").write_text("keys\n*.txt\n")
            new = GitReading(repository).result.diff or ""
            git(repository, "add", "-A")
            git(repository, "commit", "-qm", "two")
    changed = GitReading(repository).result.diff or ""
    for diff, more in ((new, [".clientlibignore"]), (changed, [])):
        assert sorted(name for names, _ in files_of(diff) for name in names) == sorted(ours + more)


def test_new_files_that_look_like_secrets_are_left_out_and_named(repository: Path) -> None:
    secret = [".aws/config", ".kube/config", "cert.pem", "id_rsa", "keys/secrets.yaml"]
    for folder in ("keys", ".aws", ".kube"):
        (repository / folder).mkdir()
    for name in (*secret, "new.py"):
        (repository / name).write_text("s3cr3t\n")
    found = GitReading(repository).result
    assert [names for names, _ in files_of(found.diff or "")] == [["new.py"]]
    assert found.missing == (
        f"new files whose names suggest a secret are left out: {', '.join(secret)}"
    )
    git(repository, "add", "-A")
    assert GitReading(repository).result.missing == found.missing
    git(repository, "commit", "-qm", "two")
    (repository / "id_rsa").write_text("changed\n")
    assert [names for names, _ in files_of(GitReading(repository).result.diff or "")] == [
        ["id_rsa"]
    ]


def test_a_repository_of_the_home_directory_is_not_read(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(repository)
    for home in (repository, repository / "src", tmp_path / "link"):
        monkeypatch.setenv("HOME", str(home))
        found = GitReading(repository / "src").result
        assert (found.commit, found.diff) == (None, None)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert GitReading(repository / "src").result.commit


def test_values_that_are_named_like_secrets_are_masked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = [
        "python",
        "run.py",
        "-e",
        "DB_PASSWORD=correct horse's",
        "--config",
        '{"api_key": "abc"}',
        "--env",
        "API_TOKEN=a b",
        "--api-key",
        "c",
        "--lr",
        "0.1",
        "line\n\udc80",
    ]
    # the command line of pytest is another one
    monkeypatch.setattr(sys, "orig_argv", words)
    shown = GitReading(tmp_path).result.command_line
    kept = (
        "python run.py -e 'DB_PASSWORD=***' --config '{\"api_key\":***' "
        "--env 'API_TOKEN=***' --api-key '***' --lr"
    )
    assert shown.startswith(kept)
    assert "a b" not in shown
    assert shown.isprintable()
