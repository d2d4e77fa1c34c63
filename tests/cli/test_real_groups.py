"""Groups by the command line, with the real local server and real processes."""

import json
import sys
from pathlib import Path

import pytest

from .conftest import Run
from .test_real_jobs import fresh_shell, shell  # noqa: F401  # fixtures

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="jobs don't run on Windows itself"),
]
SCRIPT = "import sys; print('given', sys.argv[1:]); sys.exit(7 if '3' in sys.argv else 0)\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.usefixtures("shell")
def test_a_group_is_submitted_followed_listed_read_and_removed_by_its_name(
    cli: Run, script: Path
) -> None:
    done = cli(
        "submit",
        "-f",
        "--group",
        "real-a",
        "--each",
        "seed=1..2",
        "--each",
        "lr=0.1",
        str(script),
        "--lr={lr}",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["real-a-0 SUCCEEDED", "real-a-1 SUCCEEDED"]
    assert cli("wait", "real-a").returncode == 0
    logs = cli("logs", "real-a").stdout
    assert "given ['--lr=0.1', '--seed', '1']" in logs
    assert "given ['--lr=0.1', '--seed', '2']" in logs
    rows = [line.split() for line in cli("list").stdout.splitlines() if "real-a" in line]
    assert [row[:2] for row in rows] == [["real-a", "SUCCEEDED"]], "one row"
    assert rows[0][-2:] == ["2/2", "SUCCEEDED"]
    assert [line.split()[0] for line in cli("list", "real-a").stdout.splitlines()[1:]] == [
        "real-a-1",
        "real-a-0",
    ]
    assert "2/2 SUCCEEDED" in cli("status", "real-a").stdout
    for command in ("explain", "metrics", "stacks", "status --events", "code", "download"):
        refused = cli(*command.split(), "real-a")
        assert refused.returncode == 2, command
        assert (
            refused.stderr == "Error: real-a is a group; `client-lib list real-a` shows its jobs\n"
        )
    assert cli("delete", "real-a").returncode == 0
    assert cli("status", "real-a").returncode == 5


@pytest.mark.usefixtures("shell")
def test_a_file_names_the_runs_of_a_group(cli: Run, script: Path) -> None:
    rows = script.parent / "runs.csv"
    rows.write_text('\ufefflr, note\n0.1,"a, b"\n0.01,c\n\n', encoding="utf-8")
    done = cli(
        "submit", "-f", "--group", "real-h", "--each-file", str(rows), str(script), "--lr={lr}"
    )
    assert done.returncode == 0, done.stderr
    logs = cli("logs", "real-h").stdout
    assert "given ['--lr=0.1', '--note', 'a, b']" in logs
    assert "given ['--lr=0.01', '--note', 'c']" in logs


@pytest.mark.usefixtures("shell")
def test_the_exit_code_of_a_group_is_that_of_the_first_that_failed(cli: Run, script: Path) -> None:
    done = cli(
        "submit",
        "-f",
        "--group",
        "real-b",
        "--each",
        "seed=2..4",
        "--max-parallel",
        "1",
        str(script),
    )
    assert done.returncode == 1
    assert "job real-b-1 FAILED" in done.stderr
    assert done.stdout.splitlines() == ["real-b-0 SUCCEEDED", "real-b-2 SUCCEEDED"]
    assert cli("wait", "real-b").returncode == 1


@pytest.mark.usefixtures("shell")
def test_a_cancelled_group_starts_none_of_its_waiting_members(cli: Run, tmp_path: Path) -> None:
    script = tmp_path / "sleep.py"
    script.write_text("import time; time.sleep(600)\n")
    assert (
        cli(
            "submit", "--group", "real-c", "--each", "n=0..3", "--max-parallel", "1", str(script)
        ).stdout
        == "real-c\n"
    )
    assert cli("status", "real-c").stderr.endswith("`client-lib logs real-c` shows its output\n")
    assert "-f follows one job, and these are 4" in cli("logs", "-f", "real-c").stderr
    assert cli("cancel", "real-c").returncode == 0
    assert cli("wait", "real-c").returncode == 3
    assert "4 CANCELLED" in cli("status", "real-c").stdout


@pytest.mark.usefixtures("shell")
def test_a_group_that_stops_on_a_failure_ends_with_the_code_of_the_failed_job(
    cli: Run, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time; n = int(sys.argv[2]); time.sleep(0 if n == 1 else 600); sys.exit(n)\n"
    )
    done = cli(
        "submit", "-f", "--stop-on-failure", "--group", "real-e", "--each", "n=0..3", str(script)
    )
    assert done.returncode == 1, "that of real-e-1, though real-e-0 was cancelled"
    assert "real-e-1 failed, and the group real-e stops on a failure" in done.stderr
    assert "3 CANCELLED" in cli("status", "real-e").stdout


@pytest.mark.usefixtures("shell")
def test_what_failed_in_a_group_runs_again_in_its_place(cli: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import pathlib, sys; print(sys.argv); sys.exit(sys.argv[2] != '1' and not "
        "pathlib.Path('ok').exists())"
    )
    assert (
        cli(
            "submit",
            "-f",
            "--group",
            "real-f",
            "--each",
            "n=1..3",
            "--code",
            "in_place",
            str(script),
        ).returncode
        == 1
    )
    assert cli("resubmit", "real-f", "--set", "n_workers=2").returncode == 2
    (tmp_path / "ok").touch()
    done = cli("resubmit", "-f", "--failed", "real-f")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [f"real-f-{n} SUCCEEDED" for n in (0, 3, 4)],
    ), done.stderr
    assert "`client-lib list real-f-earlier-1` the earlier ones" in done.stderr
    assert "'--n', '3'" in cli("logs", "real-f-4").stdout
    again = cli("resubmit", "--failed", "real-f")
    assert (again.returncode, "no job that has failed" in again.stderr) == (5, True), again.stderr
    assert "is a job" in cli("resubmit", "--failed", "real-f-4").stderr


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--each", "lr=1"], "a group needs both"),
        (["--group", "real-x"], "a group needs both"),
        (["--group", "real-x", "--each", "lr=1", "--each-file", "runs.csv"], "one of --each"),
        (["--group", "real-x", "--each-file", "none.csv"], "can't read none.csv: No such file"),
        (
            ["--group", "real-x", "--each", "lr=1", "--each", "lr=2"],
            "two --each have the same name",
        ),
        (["--group", "real-x", "--each", "lr=1,,2"], "is no value"),
        (["--group", "Real", "--each", "lr=1"], "'Real' is not a DNS label"),
        (["--group", "real-x", "--each", "lr=1", "--name", "other"], "named after the group"),
    ],
)
def test_a_wrong_group_is_refused_before_anything_is_submitted(
    options: list[str], says: str, cli: Run, script: Path
) -> None:
    wrong = cli("submit", *options, str(script))
    assert (wrong.returncode, says in wrong.stderr) == (2, True), wrong.stderr
    assert "real-x" not in cli("list").stdout


@pytest.mark.usefixtures("shell")
def test_the_best_of_a_group_is_found_by_a_metric(cli: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nfor i in range(4): print(f'step {i} loss={float(sys.argv[2]) / (i + 1)}')\n"
    )
    assert (
        cli("submit", "-f", "--group", "real-d", "--each", "lr=0.4,0.1,0.2", str(script)).returncode
        == 0
    )
    found = cli("best", "real-d", "--by", "loss")
    assert [line.split()[0] for line in found.stdout.splitlines()[1:]] == [
        "real-d-1",
        "real-d-2",
        "real-d-0",
    ]
    largest = json.loads(cli("best", "real-d", "--by", "loss", "--max", "-o", "json").stdout)
    assert (largest[0]["name"], largest[0]["best"]) == ("real-d-0", 0.4)
    wrong = cli("best", "real-d", "--by", "acc")
    assert wrong.returncode == 5
    assert "no job of these has the metric 'acc'; they have loss" in wrong.stderr


@pytest.mark.usefixtures("shell")
def test_members_of_a_group_and_other_jobs_are_compared(cli: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nfor i in range(4): print(f'step {i} loss={float(sys.argv[2]) / (i + 1)}')\n"
    )
    assert (
        cli("submit", "-f", "--group", "real-g", "--each", "lr=0.4,0.1", str(script)).returncode
        == 0
    )
    assert (
        cli(
            "submit", "-f", "--name", "real-single", "--no-observe", str(script), "--lr", "0.2"
        ).returncode
        == 0
    )
    found = cli("compare", "real-g", "real-single", "real-g-1")
    assert [line.split() for line in found.stdout.splitlines()] == [
        ["NAME", "STATE", "lr", "observe", "loss", "best", "loss"],
        ["real-g-0", "SUCCEEDED", "0.4", "true", "0.1", "0.1"],
        ["real-g-1", "SUCCEEDED", "0.1", "true", "0.025", "0.025"],
        ["real-single", "SUCCEEDED", "0.2", "false", "-", "-"],
    ]
    assert "real-single" in found.stderr, "a hint why it has no metrics"
    rows = cli("compare", "real-g", "-o", "csv").stdout.splitlines()
    assert rows == [
        "NAME,STATE,lr,loss,best loss",
        "real-g-0,SUCCEEDED,0.4,0.1,0.1",
        "real-g-1,SUCCEEDED,0.1,0.025,0.025",
    ]
    assert json.loads(cli("compare", "real-g", "-o", "json").stdout)[1] == {
        "name": "real-g-1",
        "state": "SUCCEEDED",
        "arguments": {"lr": "0.1"},
        "metrics": {"loss": {"last": 0.025, "best": 0.025}},
    }
    assert "real-g-1 is one job" in cli("compare", "real-g-1").stderr
    wrong = cli("compare", "real-g", "nowhere")
    assert (wrong.returncode, wrong.stdout, "no job named nowhere" in wrong.stderr) == (5, "", True)
    words = {
        "COMP_WORDS": "client-lib compare real-g",
        "COMP_CWORD": "2",
        "_CLIENT_LIB_COMPLETE": "complete_bash",
    }
    assert cli(**words).stdout.split() == ["real-g", "real-g-1", "real-g-0"]
