"""`make release`: its refusals, and the steps that write into a checkout."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib import __version__
from release import __main__ as release, versions
from release.versions import PLACES, found

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files of this checkout that a release writes, and one change."""
    files = [*(place.file for place in PLACES), "CHANGELOG.md", "changelog.d/README.md"]
    for file in files:
        target = tmp_path / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, target)
    (tmp_path / "changelog.d" / "stacks.added.md").write_text("`stacks --native` shows C.\n")
    return tmp_path


def of(root: Path, version: str = "0.9.0") -> release.Release:
    return release.Release(root, version, Path("cyclonedx-py"))


def test_the_version_is_written_to_each_place(copy: Path) -> None:
    release.write_version(copy, "0.9.0")
    assert versions.read(copy) == "0.9.0"
    assert {name for place in PLACES for name in found(place, (copy / place.file).read_text())} == {
        "0.9.0"
    }


def test_the_changes_go_into_the_changelog_and_their_files_away(copy: Path) -> None:
    release.join_changelog(of(copy))
    changelog = (copy / "CHANGELOG.md").read_text()
    assert "## 0.9.0 - 20" in changelog
    assert "- `stacks --native` shows C.\n" in changelog
    assert changelog.index("0.9.0") < changelog.index("## 0.1.0 - 2026-11-22")
    assert [path.name for path in (copy / "changelog.d").iterdir()] == ["README.md"]


def test_the_recorder_is_told_the_version(copy: Path) -> None:
    recorder = copy / "tests" / "compat" / "record.py"
    recorder.parent.mkdir(parents=True)
    (copy / "tests" / "__init__.py").touch()
    recorder.write_text("import sys; open('recorded', 'w').write(sys.argv[1])\n")
    release.record_requests(of(copy))
    assert (copy / "recorded").read_text() == "0.9.0"


@pytest.mark.process
@pytest.mark.parametrize("version", ["", "1.0", __version__, "0.0.1"])
def test_a_wrong_version_ends_it_with_a_sentence_and_changes_nothing(version: str) -> None:
    line = [sys.executable, "-m", "release", version, "--materials-tool", "cyclonedx-py"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("no release: ")
