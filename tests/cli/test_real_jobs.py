"""The command line with the real local server, started on demand, and real worker processes."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib.spec.wire import Event, JobInfo, Manifest
from tests.kit.waiting import until

from .conftest import CLI, Run
from .terminal import Terminal

STEPS = """
import os, sys, time
for step in range(int(sys.argv[2])):
    print("step", step, flush=True)
    time.sleep(0.1)
open("done.txt", "w").write(repr(sys.argv[1:]))
"""

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="jobs don't run on Windows itself"),
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(STEPS)
    return path


@pytest.fixture
def fresh_shell(environment: dict[str, str], local_state: Path) -> dict[str, str]:
    """A shell whose python is ours, and where no local server ran before."""
    environment["VIRTUAL_ENV"] = sys.prefix
    return environment


@pytest.fixture
def shell(fresh_shell: dict[str, str], local_server: Path, commands_here: None) -> dict[str, str]:
    """As fresh_shell, with the shared server."""
    fresh_shell["CLIENT_LIB_STATE_DIR"] = str(local_server)
    return fresh_shell


def submit(cli: Run, *line: str) -> str:
    done = cli("submit", "-o", "name", *line)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_first_example_runs_in_an_empty_folder(
    shell: dict[str, str], cli: Run, tmp_path: Path
) -> None:
    written = cli("init", "first")
    assert written.stdout.splitlines() == ["first/train.py", "first/job.yaml"]
    done = cli("submit", "-f", "-c", "first/job.yaml")
    assert done.returncode == 0, done.stderr
    assert [line.split(" loss=")[0] for line in done.stdout.splitlines()] == [
        f"[0] step {n}/100" for n in range(20, 101, 20)
    ]
    (tmp_path / "first" / "train.py").write_text("mine")
    again = cli("init", "first")
    assert again.returncode == 2
    assert "first/train.py" in again.stderr
    assert (tmp_path / "first" / "train.py").read_text() == "mine"


@pytest.mark.smoke
def test_a_followed_job_prints_its_lines_and_ends_as_the_job_does(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    done = cli(
        "submit", "-f", "-N", "2", "--name", "first", "train.py", "--steps", "2", "-n", "a b"
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("[1]")] == [
        "[1] step 0",
        "[1] step 1",
    ]
    assert 'Job "first" created.' in done.stderr
    assert re.search(
        r"first SUCCEEDED in \d+s\n`client-lib logs first` shows its log again$",
        done.stderr.rstrip(),
    )
    assert (script.parent / "done.txt").read_text() == "['--steps', '2', '-n', 'a b']"


def test_what_the_server_reads_otherwise_is_said_once_beside_the_data(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    notice = "instance_type='a100.8gpu' asks for 8 GPUs per worker"
    for follow in ([], ["-f"]):
        done = cli("submit", *follow, "-i", "a100.8gpu", "train.py", "--steps", "1")
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(notice) == 1
        assert notice not in done.stdout


def test_the_losses_of_a_job_are_shown_as_it_prints_them(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    script.write_text(
        "import time\nfor n in range(600):\n    print(f'step {n}/600 loss={n / 4}', flush=True)\n "
        "   time.sleep(0.1)"
    )
    name = submit(cli, "--grace-s", "1", "train.py")
    until(lambda: " left · loss " in cli("list").stdout)
    assert re.search(
        r"^progress +\d+% · .* left .* steps/s$", cli("status", name).stdout, re.MULTILINE
    )
    rows = cli("metrics", name, "-o", "csv").stdout.splitlines()
    assert rows[0] == "metric,rank,step,time,value"
    assert [row.split(",")[::2] for row in rows[1:4]] == [
        ["loss", "0", "0.0"],
        ["loss", "1", "0.25"],
        ["loss", "2", "0.5"],
    ]
    cli("cancel", name)
    cli("wait", name)
    watched = cli("metrics", name, "--watch").stdout
    assert re.search(r"^loss +0 +[▁-█]+ ", watched, re.MULTILINE)
    assert json.loads(cli("metrics", name, "-o", "json").stdout)["progress"] is None
    assert cli("metrics", name, "--rank", "x").returncode == 2


def test_a_script_can_tell_its_metrics(shell: dict[str, str], cli: Run, script: Path) -> None:
    script.write_text(
        "import client_lib\nfor n in range(3):\n    client_lib.log({'return': n / 7}, step=10 * "
        "n)\nclient_lib.log({'x' * 5000: 1})\nclient_lib.finish()\nprint('said')"
    )
    name = submit(cli, "-N", "2", "train.py")
    assert cli("wait", name).returncode == 0
    assert sorted(cli("logs", name).stdout.splitlines()) == ["[0] said", "[1] said"]
    found = json.loads(cli("metrics", name, "--rank", "all", "-o", "json").stdout)["curves"]
    assert [(curve["name"], curve["rank"], curve["steps"]) for curve in found] == [
        ("return", rank, [0, 10, 20]) for rank in (0, 1)
    ]
    assert found[1]["values"] == [0, 1 / 7, 2 / 7]
    csv = cli("metrics", name, "-o", "csv")
    assert len(csv.stdout.splitlines()) == 4
    assert "values of client_lib.log are missing" in csv.stderr


def test_the_files_of_a_script_are_read(shell: dict[str, str], cli: Run, script: Path) -> None:
    script.write_text(
        "import os, time\nos.makedirs('logs/version_0')\nwith open('logs/version_0/metrics.csv', "
        "'w') as file:\n    "
        "file.write('epoch,step,train_loss\\n0,49,0.25\\n')\ntime.sleep(3)\nwith "
        "open('logs/version_0/metrics.csv', 'a') as file:\n    file.write('0,99,0.125\\n')\n"
    )
    name = submit(cli, "train.py")
    assert cli("wait", name).returncode == 0
    (found,) = json.loads(cli("metrics", name, "-o", "json").stdout)["curves"]
    assert (found["name"], found["steps"], found["values"]) == (
        "train_loss",
        [49, 99],
        [0.25, 0.125],
    )


@pytest.mark.smoke
def test_a_failed_job_ends_with_1_and_the_report(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    script.write_text("print('before'); raise KeyError('learning_rate')")
    done = cli("submit", "-f", "--name", "bad", "train.py")
    assert done.returncode == 1
    assert "before" in done.stdout
    report = done.stderr[done.stderr.index("Error: ") :].splitlines()
    assert report[0].startswith(
        "Error: job bad FAILED (ExitCode): rank 0 on worker 0 ended with exit code 1"
    )
    assert report[1:] == [
        "KeyError: 'learning_rate'",
        "next: `client-lib logs bad --rank 0` shows its output",
    ]
    assert done.stderr.count("Traceback") == 0, "the follower has printed it"
    assert "KeyError: 'learning_rate'" in cli("status", "bad").stdout
    assert cli("wait", "bad").returncode == 1
    state = json.loads(cli("status", "bad", "-o", "json").stdout)
    assert JobInfo.model_validate(state).failure is not None


def test_the_life_of_a_job(shell: dict[str, str], cli: Run, script: Path) -> None:
    script.write_text("import time; print('begins', flush=True); time.sleep(600)")
    name = submit(cli, "-l", "team=vision", "--grace-s", "1", "train.py")
    until(lambda: "begins" in cli("logs", name).stdout)
    assert (
        cli("list", "-l", "team=vision", "--state", "running", "-o", "name").stdout == f"{name}\n"
    )
    assert cli("wait", name, "--timeout", "0.1").returncode == 124
    refused = cli("delete", name)
    assert (refused.returncode, refused.stdout) == (5, "")
    assert cli("cancel", name).returncode == 0
    assert cli("wait", name).returncode == 3
    events = json.loads(cli("status", name, "--events", "-o", "json").stdout)
    assert [str(Event.model_validate(event).state) for event in events][-1] == "CANCELLED"
    assert cli("delete", name).returncode == 0
    assert cli("status", name).returncode == 5


def test_logs_are_filtered_and_come_as_json(shell: dict[str, str], cli: Run, script: Path) -> None:
    script.write_text(
        "import sys, os\nprint('out', os.environ['RANK']); print('err', file=sys.stderr)"
    )
    name = submit(cli, "-N", "2", "train.py")
    cli("wait", name)
    assert cli("logs", name, "--rank", "1", "--stream", "stdout").stdout == "out 1\n"
    assert cli(
        "logs", name, "-n", "1", "--rank", "0", "--rank", "1", "--stream", "stderr"
    ).stdout in (
        "[0] err\n",
        "[1] err\n",
    )
    (entry,) = map(
        json.loads,
        cli("logs", name, "--rank", "0", "--stream", "stdout", "-o", "json").stdout.splitlines(),
    )
    assert set(entry) == {"time", "worker", "rank", "attempt", "seq", "stream", "kind", "text"}
    assert (entry["text"], entry["rank"], entry["attempt"]) == ("out 0", 0, 1)
    assert cli("logs", name, "--stream", "nonsense").returncode == 2
    found = cli("logs", name, name, "--grep", "^o", "-C", "1", "--rank", "1", "--stream", "stdout")
    assert found.stdout == f"==> {name} <==\nout 1\n" * 2
    (entry,) = map(
        json.loads, cli("logs", name, "--grep", "out 0", "-o", "json").stdout.splitlines()
    )
    assert entry["text"] == "out 0"
    assert "no --grep" in cli("logs", name, "-f", "--grep", "x").stderr
    assert "all ranks" in cli("logs", name, "--diverge").stderr
    refused = cli("logs", name, "--rank", "9")
    assert refused.returncode != 0
    assert refused.stdout == ""
    assert "no rank 9" in refused.stderr
    assert "0 to 1" in refused.stderr


def test_the_first_line_in_which_ranks_differ_is_shown(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    script.write_text(
        "import os\nr = os.environ['RANK']\nprint('rank', r)\nif r != '1': print('loaded')"
    )
    name = submit(cli, "-N", "3", "train.py")
    cli("wait", name)
    shown = cli("logs", name, "--diverge").stdout.splitlines()
    assert shown[1:] == [
        "[0,2]   rank 0",
        "[0,2] > loaded",
        "[1]   rank 1",
        "[1] > (no more lines)",
    ]
    found = json.loads(cli("logs", name, "--diverge", "-o", "json").stdout)
    assert (found["agreed"], [side["ranks"] for side in found["sides"]]) == (1, [[0, 2], [1]])
    assert "has one rank" in cli("logs", name, "--diverge", "--rank", "1").stderr
    assert "no other options" in cli("logs", name, "--diverge", "-f").stderr


def test_a_dry_run_creates_nothing_and_says_the_same_twice(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    line = ("-N", "2", "-e", "MY_TOKEN=s3cret", "--name", "dry", "train.py", "--lr", "0.1")
    first, second = (
        cli("render", "-o", "json", *line),
        cli("render", "-o", "json", *line),
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert len(Manifest.model_validate_json(first.stdout).objects) == 2
    assert "s3cret" not in first.stdout
    assert "--lr" in cli("render", *line).stdout
    assert cli("list", "-o", "name", "--name", "dry").stdout == ""


def test_an_option_of_ours_behind_the_script_is_named(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    said = "--n-workers behind train.py goes to the script, which does not declare it"
    assert said in cli("render", "train.py", "--n-workers", "2").stderr
    assert said in cli("render", "python", "train.py", "--n-workers=2").stderr
    script.write_text("import argparse\nargparse.ArgumentParser().add_argument('--n-workers')")
    assert "n-workers" not in cli("render", "train.py", "--n-workers", "2").stderr


def test_a_script_that_must_fail_is_named_before_the_submit(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    script.write_text(
        "import no_such_module\nimport argparse\nargparse.ArgumentParser().parse_args()\n"
    )
    warned = cli("submit", "--name", "warned", "train.py", "--lr", "1")
    assert (warned.returncode, warned.stdout.splitlines()[0]) == (0, 'Job "warned" created.')
    assert f"{script}:1: there is no module 'no_such_module'" in warned.stderr
    assert f"{script}:3: parse_args() will refuse --lr" in warned.stderr
    assert (
        "no_such_module" not in cli("submit", "--requirement", "no_such_module", "train.py").stderr
    )
    assert f"{script}:1" not in cli("submit", "-e", "PYTHONPATH=/elsewhere", "train.py").stderr
    script.write_text("x = 1\ndef f(:\n")
    refused = cli("run", "train.py")
    assert (refused.returncode, f"{script}:2: invalid syntax: def f(:" in refused.stderr) == (
        2,
        True,
    )
    assert cli("submit", "--no-check", "--name", "unchecked", "train.py").returncode == 0


def test_a_terminal_sees_what_a_submit_waits_for(
    fresh_shell: dict[str, str], run_here: Run, script: Path
) -> None:
    with Terminal(
        "submit", "--name", "first", "train.py", environment=fresh_shell, cwd=script.parent
    ) as terminal:
        terminal.read_until(b"starting the local server")
        terminal.read_until(b'Job "first" created.')
        terminal.read_to_end()
    assert terminal.exit_code == 0
    assert "starting" not in run_here("submit", "train.py").stderr


def test_a_program_that_is_not_there_is_refused_at_submit(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    refused = cli("submit", "no-such-program", "train.py")
    assert (
        refused.returncode,
        "there is no program 'no-such-program' on PATH" in refused.stderr,
    ) == (2, True)
    assert cli("render", "-e", f"PATH={script.parent}", "ls").returncode == 2
    assert cli("render", "ls", "-l").returncode == 0


def test_a_job_file_and_a_resubmit_run_the_same(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    (script.parent / "job.yaml").write_text(
        "script: train.py --steps 1\nname: from-file\nlabels: {a: b}\n"
    )
    assert cli("submit", "-f", "-c", "job.yaml").returncode == 0
    (script.parent / "done.txt").unlink()
    again = cli("resubmit", "-f", "--name", "again", "from-file", PWD="/")
    assert again.returncode == 0, again.stderr
    assert (script.parent / "done.txt").read_text() == "['--steps', '1']"
    assert cli("list", "-o", "name", "-l", "a=b").stdout == "again\nfrom-file\n"


def test_the_job_gets_the_python_of_the_shell(
    shell: dict[str, str], cli: Run, script: Path, tmp_path: Path
) -> None:
    other = tmp_path / "environment" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(sys.executable)
    script.write_text("import sys; print(sys.executable)")
    assert (
        f"[0] {other}\n"
        in cli("submit", "-f", "train.py", VIRTUAL_ENV=str(tmp_path / "environment")).stdout
    )


def test_a_submit_in_place_loads_only_what_it_uses(shell: dict[str, str], script: Path) -> None:
    """Start-up is most of what a submit takes: what packs snapshots, reads files
    and draws tables stays away.
    """
    rest = (
        "{'client_lib.submit.snapshot', 'client_lib.log_reading.reader', 'html', 'requests', "
        "'urllib3', 'pathspec', 'yaml', 'rich', 'torch', 'server_stub'}"
    )
    code = (
        "import sys; from client_lib.cli.app import run; code = run(['submit', 'train.py', "
        f"'--steps', '0']); print(sorted({rest} & set(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=script.parent,
        env=shell,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("line", "code", "about"),
    [
        (["trian.py"], 2, "train.py"),
        ([".", "x"], 2, "directory"),
        (["-i", "no-such-type", "train.py"], 2, "no-such-type"),
        (["-t", "horovod", "train.py"], 2, "horovod"),
    ],
)
def test_what_cannot_run_is_refused_in_words(
    shell: dict[str, str], cli: Run, script: Path, line: list[str], code: int, about: str
) -> None:
    refused = cli("submit", *line)
    assert (refused.returncode, refused.stdout) == (code, ""), refused.stderr
    assert about in refused.stderr
    assert "Traceback" not in refused.stderr


def test_kill_9_of_the_follower_leaves_the_job_running(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    follower = subprocess.Popen(
        [*CLI, "submit", "-f", "--name", "survivor", "train.py", "--steps", "20"],
        cwd=script.parent,
        env=shell,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert follower.stdout
    while b"step 0" not in follower.stdout.readline():
        pass
    follower.send_signal(signal.SIGKILL)
    follower.wait()
    assert cli("wait", "survivor").stdout == "survivor SUCCEEDED\n"
    assert cli("logs", "survivor", "--rank", "0").stdout.splitlines()[-1] == "step 19"


@pytest.mark.parametrize(
    "look", ["submit -f --name NAME train.py", "wait NAME", "logs -f NAME", "logs -f NAME -o json"]
)
def test_ctrl_c_leaves_the_job_running_and_says_how_to_stop_it(
    shell: dict[str, str], cli: Run, script: Path, look: str
) -> None:
    name = f"goes-on-{abs(hash(look))}"
    script.write_text("import time; print('begins', flush=True); time.sleep(600)")
    if not look.startswith("submit"):
        submit(cli, "--name", name, "train.py")
        until(lambda: "begins" in cli("logs", name).stdout)
    with Terminal(
        *look.replace("NAME", name).split(), environment=shell, cwd=script.parent
    ) as terminal:
        terminal.read_until(
            f"waiting for {name}".encode() if look.startswith("wait") else b"begins"
        )
        terminal.write(b"\x03")
        shown = terminal.read_to_end()
    assert terminal.exit_code == 130
    assert f"`client-lib cancel {name}` stops it".encode() in shown
    assert b"Traceback" not in shown
    assert json.loads(cli("status", name, "-o", "json").stdout)["state"] == "RUNNING"


LONG_LINE = """
import json, sys
print(json.dumps({"eval": ["x" * 10] * 100_000, "last": 42}))
sys.stdout.flush()
sys.stdout.buffer.write(b"\\xff\\x1b]52;c;aGk=\\x07after\\n")
"""


def test_a_line_of_a_megabyte_is_whole_where_a_program_reads_it(
    shell: dict[str, str], cli: Run, tmp_path: Path
) -> None:
    (tmp_path / "long.py").write_text(LONG_LINE)
    cli("submit", "-f", "--processes-per-worker", "1", "--name", "wide", str(tmp_path / "long.py"))
    first, second, *_ = cli("logs", "wide").stdout.splitlines()
    assert json.loads(first)["last"] == 42
    assert second == "\ufffd\x1b]52;c;aGk=\x07after"
    entries = [json.loads(line) for line in cli("logs", "-o", "json", "wide").stdout.splitlines()]
    printed = [entry for entry in entries if entry["stream"] == "stdout"]
    assert [(entry["kind"], entry["text"]) for entry in printed] == [("", first), ("", second)]
    raw = subprocess.run([*CLI, "logs", "-o", "raw", "wide"], env=shell, stdout=subprocess.PIPE)
    assert raw.stdout == first.encode() + b"\n\xff\x1b]52;c;aGk=\x07after\n"


def test_a_terminal_shows_a_log_and_does_nothing_that_it_says(
    shell: dict[str, str], cli: Run, tmp_path: Path
) -> None:
    (tmp_path / "hostile.py").write_text(r"print('\x1b[31mred\x1b[A\x1b]52;c;aGk=\x07 \u202eword')")
    cli(
        "submit",
        "-f",
        "--processes-per-worker",
        "1",
        "--name",
        "hostile",
        str(tmp_path / "hostile.py"),
    )
    with Terminal("logs", "hostile", environment=shell) as terminal:
        shown = terminal.read_to_end()
    assert shown == b"\x1b[31mred <U+202E>word\x1b[0m\r\n"


def test_a_pipe_that_reads_one_line_ends_the_command_and_not_the_job(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    line = " ".join(
        [*CLI, "submit", "-f", "--name", "piped", "train.py", "--steps", "10", "|", "head", "-1"]
    )
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=script.parent,
        env=shell,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert cli("wait", "piped").returncode == 0


def test_submit_into_a_pipe_does_not_hang_on_the_server_that_it_starts(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    line = " ".join([*CLI, "submit", "train.py", "--steps", "1", "|", "cat"])
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=script.parent,
        env=shell,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.startswith('Job "train-')


# --- the server


def test_the_local_server_is_shown_and_stopped_and_found_again(
    fresh_shell: dict[str, str], run_here: Run, local_state: Path
) -> None:
    assert json.loads(run_here("server", "status", "-o", "json").stdout)["running"] is False
    assert run_here("server", "status").returncode == 4
    run_here("list")
    shown = run_here("server", "status", "-o", "json")
    assert shown.returncode == 0
    facts = json.loads(shown.stdout)
    assert (facts["running"], facts["answers"], facts["state_dir"]) == (
        True,
        True,
        str(local_state),
    )
    assert facts["disk_mib"]["database"] > 0
    assert facts["memory_mib"] > 10
    assert run_here("server", "restart").returncode == 0
    restarted = json.loads(run_here("server", "status", "-o", "json").stdout)
    assert (restarted["running"], restarted["pid"] != facts["pid"]) == (True, True)
    assert run_here("server", "stop").returncode == 0
    assert run_here("server", "stop").returncode == 0
    assert "no local server runs here" in run_here("server", "stop").stderr
    assert run_here("server", "status").returncode == 4


def test_serve_runs_in_the_foreground_and_takes_users(
    fresh_shell: dict[str, str], cli: Run, run_here: Run, tmp_path: Path
) -> None:
    token = cli("server", "token", "ann", "--users-file", "users.toml").stdout.strip()
    state = tmp_path / "state"
    line = [
        *CLI,
        "serve",
        "--state-dir",
        str(state),
        "--users-file",
        "users.toml",
        "--insecure-shared-uid",
    ]
    server = subprocess.Popen(line, cwd=tmp_path, env=fresh_shell, stderr=subprocess.DEVNULL)
    try:
        until((state / "server.json").exists)
        url = json.loads((state / "server.json").read_text())["url"]
        assert json.loads((state / "server.json").read_text())["pid"] == server.pid
        assert run_here("list", "--endpoint", url, CLIENT_LIB_TOKEN="wrong").returncode == 5
        assert run_here("list", "--endpoint", url, CLIENT_LIB_TOKEN=token).returncode == 0
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=20) in (0, 130)


def test_a_module_in_the_current_folder_is_not_the_servers(
    fresh_shell: dict[str, str], cli: Run, tmp_path: Path
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong queue')")
    assert cli("serve", "--version").returncode == 0
    assert cli("server", "token", "ann", "--users-file", "users.toml").returncode == 0


def test_stacks_of_a_running_job(shell: dict[str, str], cli: Run, script: Path) -> None:
    script.write_text(
        "import time\ndef waits():\n    print('up', flush=True)\n    time.sleep(600)\nwaits()\n"
    )
    name = submit(cli, "--grace-s", "1", "train.py")
    until(lambda: "up" in cli("logs", name).stdout)
    shown = cli("stacks", name)
    assert shown.stdout == "rank 0: waits (train.py:4) <- <module> (train.py:5)\n", shown.stderr
    assert "main thread" in cli("stacks", name, "--rank", "0").stdout
    assert json.loads(cli("stacks", name, "-o", "json").stdout)["ranks"][0]["rank"] == 0
    wrong = cli("stacks", name, "--rank", "3")
    assert wrong.returncode == 5
    assert "nothing of rank 3; ranks: 0" in wrong.stderr
    assert cli("cancel", name).returncode == 0


def test_the_machines_are_checked_without_a_script(
    shell: dict[str, str], cli: Run, tmp_path: Path
) -> None:
    done = cli("doctor", "--gang", "2")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"preflight: passed in [\d.]+ s, beside [\d.]+ s for the import of torch and the "
        r"rendezvous$",
        done.stdout,
        re.MULTILINE,
    )
    refused = cli("doctor", "-i", "a100.8gpu")
    assert (refused.returncode, "-i is for the workers of --gang N" in refused.stderr) == (2, True)
    (tmp_path / "torch.py").write_text("raise ImportError('no libcudart')")
    shell["PYTHONPATH"] = str(tmp_path)
    failed = cli("doctor", "--gang", "1")
    assert failed.returncode == 1
    assert "preflight needs torch: no libcudart" in failed.stderr
