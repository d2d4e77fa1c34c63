"""`.ci/run` and its tiers, with a `make` that only notes what it is asked for; and the workflow
that calls it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_project import PROJECT

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / ".ci" / "run"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TOOLS = ("apt-get", "ps", "ip", "mount", "nsenter", "openssl", "chromium", "go", "npm", "initdb")

TIERS = ("check", "docs", "test", "test-all", "test-cluster")

CiRun = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """The file in which `make` notes its arguments, one call a line."""
    return tmp_path / "asked"


@pytest.fixture
def ci(tmp_path: Path, asked: Path) -> CiRun:
    """Run `.ci/run` where all its tools are there, and do nothing."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    for name in TOOLS:
        script(tools / name, "exit 0")
    script(tools / "make", f'echo "$*" >> {asked}; echo "7 passed, 1 skipped in 1s"')

    def call(*tiers: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "CI": ""} | variables
        return subprocess.run([RUN, *tiers], env=environment, capture_output=True, text=True)

    return call


def script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def targets(asked: Path) -> list[str]:
    """The targets that `make` was asked for."""
    return [word for word in asked.read_text().split() if word in TIERS]


def test_without_a_tier_it_is_everything_that_must_hold_of_main(ci: CiRun, asked: Path) -> None:
    done = ci()
    assert done.returncode == 0, done.stderr
    assert targets(asked) == ["check", "docs", "test-all", "test-cluster"]


def test_the_tiers_that_are_named_run_in_their_order(ci: CiRun, asked: Path) -> None:
    assert ci("test", "check").returncode == 0
    assert targets(asked) == ["test", "check"]


def test_check_and_docs_run_side_by_side(ci: CiRun, asked: Path) -> None:
    assert ci("docs", "test", "check").returncode == 0
    together, test = asked.read_text().splitlines()
    assert together == "--jobs=2 --output-sync=target check docs"
    assert test.startswith("test ")


def test_the_tests_of_the_client_are_folders_that_are_there(ci: CiRun, asked: Path) -> None:
    assert ci("client").returncode == 0
    assert targets(asked) == ["test"]
    folders = re.findall(r"tests/\S+", asked.read_text())
    assert len(folders) > 5
    assert [folder for folder in folders if not list((ROOT / folder).glob("test_*.py"))] == []


def test_a_skipped_test_fails_the_whole_run_alone(ci: CiRun, asked: Path) -> None:
    whole = ci(CI="true")
    assert whole.returncode == 1
    assert "a test was skipped, which CI does not accept" in whole.stderr
    assert targets(asked) == ["check", "docs", "test-all"]
    assert ci("test", CI="true").returncode == 0


def test_an_unknown_tier_is_refused_before_anything_runs(ci: CiRun, asked: Path) -> None:
    done = ci("check", "tests")
    assert done.returncode == 2
    assert done.stderr.startswith("there is no tier 'tests'; the tiers are check docs client test")
    assert not asked.exists()


# --- the workflow


def jobs(workflow: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(workflow.read_text())["jobs"]
    return found


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_an_action_of_others_is_pinned_by_its_commit_with_its_version_beside_it(
    workflow: Path,
) -> None:
    used = re.findall(r"uses: (.*)", workflow.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*", action), action


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_tiers_of_the_run(workflow: Path) -> None:
    (known,) = re.findall(r"^every_tier=\((.*)\)$", RUN.read_text(), re.MULTILINE)
    for tiers in re.findall(r"run: \.ci/run (.+)", workflow.read_text()):
        assert set(tiers.split()) <= set(known.split())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_takes_pythons_that_the_metadata_names(workflow: Path) -> None:
    named = {text.rsplit(" ", 1)[1] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    for job in jobs(workflow).values():
        pythons = job.get("strategy", {}).get("matrix", {}).get("python", [])
        assert set(pythons) <= named
