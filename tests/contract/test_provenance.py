"""What a job ran, wherever it runs: the record, the difference of two jobs, the code given back."""

import os
from pathlib import Path
from typing import Any

import pytest

from client_lib import Job
from client_lib.errors import InvalidRequest, NotFound
from client_lib.spec.states import State
from client_lib.submit import git_reading
from tests.contract.places import ClusterPlace, Place, ended
from tests.kit.bounds import Bounds
from tests.submit.test_provenance import git

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def patient(bounds: Bounds) -> None:
    """On a busy machine git takes longer than a submit waits for it."""
    bounds("client_lib.submit.git_reading", PATIENCE_S=5.0)


TRAIN = """
import part
for step in range(5):
    print(f"step {step}/5 loss={part.X / (step + 1)}")
if part.X > 5:
    raise ValueError("too large")
"""


@pytest.fixture
def project(place: Place, tmp_path: Path, bounds: Bounds) -> Path:
    """A repository with a script whose helper is to be changed."""
    # for any machine
    bounds(git_reading, PATIENCE_S=60.0)
    root = place.folder / tmp_path.name
    root.mkdir()
    (root / "part.py").write_text("X = 1\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def run_recorded(place: Place, project: Path, value: int, **fields: Any) -> Job:
    """A job that ended; `value` is in a file that its script imports."""
    (project / "part.py").write_text(f"X = {value}\n")
    (project / "train.py").write_text(TRAIN)
    job = Job(
        script=project / "train.py",
        client=place.client,
        instance_type=place.instance_type,
        **fields,
    )
    job.submit()
    return ended(job)


def test_a_failed_job_says_what_has_changed_since_its_script_succeeded(
    place: Place, project: Path, monkeypatch: pytest.MonkeyPatch, bounds: Bounds
) -> None:
    monkeypatch.setenv("PIN_SEED", "4711")
    good = run_recorded(
        place,
        project,
        1,
        code="snapshot",
        args=["--lr", "0.1"],
        env_variables={"PYTHONHASHSEED": "1"},
    )
    assert good.info().state is State.SUCCEEDED, good.info().message
    bad = run_recorded(
        place,
        project,
        9,
        code="snapshot",
        args=["--lr", "0.2"],
        env_variables={"PYTHONHASHSEED": "2"},
        secrets=["PIN_SEED"],
    )
    assert bad.info().state is State.FAILED
    found = bad.provenance()
    assert found.last_success == good.name
    assert found.submitted
    assert found.submitted.commit == git(project, "rev-parse", "HEAD")
    assert "+X = 9" in (found.submitted.diff or "")
    assert found.machines[0].hardware.keys() >= {"python", "cpu", "cores"}
    assert found.machines[0].seeds == {"PYTHONHASHSEED": "2"}
    if isinstance(place, ClusterPlace):
        assert "sha256:" in found.images[0]
    else:
        assert found.machines[0].packages["pydantic"]
    sentence = bad.explain().splitlines()[-1]
    assert sentence == bad.explanation().changed
    assert sentence.startswith(f"changed since {good.name}, which succeeded: files part.py; ")
    assert "args: --lr 0.1 -> --lr 0.2" in sentence
    assert "PYTHONHASHSEED" in sentence
    assert good.explanation().changed == ""
    with monkeypatch.context() as full:
        # the snapshots can't be unpacked
        full.setattr("tempfile.tempdir", "/nowhere")
        assert "changed since" not in bad.explain()
    bounds("client_lib.job", _COMPARED_MAX=1)
    assert "code snapshot: " in bad.changed_since_success()


def test_two_jobs_are_compared_and_the_code_of_one_comes_back(
    place: Place, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (
        run_recorded(place, project, 1, code="snapshot"),
        run_recorded(place, project, 2, code="snapshot"),
    )
    found = first.diff(second)
    assert found.files == {"part.py": "--- a/part.py\n+++ b/part.py\n@@ -1 +1 @@\n-X = 1\n+X = 2"}
    assert found.parts["metrics"] == ["loss: 0.2, best 0.2 -> 0.4, best 0.4"]
    assert found.parts.keys() == {"code", "metrics"}
    assert second.diff(str(second.name)).parts == {}
    assert str(first.diff(first)).endswith(": nothing that is recorded differs")
    (project / "part.py").write_text("later\n")
    assert str(tmp_path / "code") in first.code(tmp_path / "code")
    assert {
        name: (tmp_path / "code" / name).read_text() for name in os.listdir(tmp_path / "code")
    } == {
        "part.py": "X = 1\n",
        "train.py": TRAIN,
    }
    with pytest.raises(InvalidRequest, match="not an empty folder"):
        first.code(tmp_path / "code")
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    monkeypatch.chdir(tmp_path / "here")
    first.code(tmp_path / "link")
    assert sorted(os.listdir()) == ["part.py", "train.py"]


def test_of_jobs_in_place_the_patches_are_kept(
    local_place: Place, tmp_path: Path, bounds: Bounds
) -> None:
    bounds(git_reading, PATIENCE_S=60.0)
    place, root = local_place, tmp_path / "in-place"
    root.mkdir()
    outside = run_recorded(place, root, 1, code="in_place")
    with pytest.raises(NotFound, match=r"only the digest of .*train.py: [0-9a-f]{64} was kept"):
        outside.code(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (root / "part.py").write_text("X = 1\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    # Python takes the bytecode of a file whose size and second of change are the same: the second
    # value is longer
    good, bad = (
        run_recorded(place, root, 1, code="in_place"),
        run_recorded(place, root, 10, code="in_place"),
    )
    assert list(good.diff(bad).files) == ["part.py"]
    assert bad.explanation().changed == f"changed since {good.name}, which succeeded: files part.py"
    sentence = bad.code(tmp_path / "back")
    assert f"commit {git(root, 'rev-parse', 'HEAD')}" in sentence
    git(root, "stash", "-qu")
    git(root, "apply", str(tmp_path / "back" / "changes.diff"))
    assert ((root / "part.py").read_text(), (root / "train.py").read_text()) == ("X = 10\n", TRAIN)


def test_each_job_of_a_group_has_the_record_but_not_a_large_patch(
    local_place: Place, tmp_path: Path, bounds: Bounds
) -> None:
    bounds(git_reading, PATIENCE_S=60.0)
    root = tmp_path / "group"
    root.mkdir()
    (root / "train.py").write_text("print(1)\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    for name, text, kept in (
        ("small", "x = 1\n", True),
        ("large", "x = 1\n" * 10_000, False),
        ("together", "x = 1\n", False),
    ):
        (root / "new.py").write_text(text)
        if name == "together":
            # in place of 32 MiB
            bounds("client_lib.submit.request", GROUP_BYTES_MAX=100)
        job = Job(
            script=root / "train.py",
            client=local_place.client,
            instance_type=local_place.instance_type,
        )
        for member in job.each(name, {"lr": [1, 2]}):
            found = member.provenance().submitted
            assert found
            assert found.commit == git(root, "rev-parse", "HEAD")
            assert (found.diff is not None, found.missing is None) == (kept, kept)
            ended(member)
