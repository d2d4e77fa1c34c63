"""How commands end: one table of exit codes, data on stdout, everything else on stderr."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from client_lib import errors
from client_lib.cli.app import COMMANDS
from client_lib.cli.program import ExitCode
from client_lib.spec.states import State
from tests.kit.jobs import job_info
from tests.kit.small_server import SmallServer

from .conftest import CLI, Run


def test_every_error_has_an_exit_code() -> None:
    for kind in errors.BY_CODE.values():
        assert ExitCode.of_error(kind("what happened")) in (1, 2, 3, 4, 5, 124)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest, 2),
        (errors.NeverFits, 5),
        (errors.Unauthorized, 5),
        (errors.NotFound, 5),
        (errors.KeyReused, 5),
        (errors.StorageFull, 5),
        (errors.Unavailable, 4),
        (errors.ServerUnreachable, 4),
        (errors.BadResponse, 4),
        (errors.JobFailed, 1),
        (errors.JobCancelled, 3),
        (errors.WaitTimeout, 124),
    ],
)
def test_the_table(error: type[errors.ClientLibError], code: int) -> None:
    assert ExitCode.of_error(error("x")) == code


def test_the_docstring_names_every_code() -> None:
    lines = [line.split() for line in (ExitCode.__doc__ or "").splitlines()]
    assert {int(words[0]) for words in lines if words and words[0].isdigit()} == set(ExitCode)


def test_without_a_command_the_help_is_shown_beside_the_data(cli: Run) -> None:
    nothing = cli()
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "Start:" in nothing.stderr


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"serve"}))
def test_the_help_of_each_command_says_what_it_does_and_shows_examples(
    cli: Run, command: str
) -> None:
    shown = cli(command, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"Usage: client-lib {command} ")
    assert "Examples:" in shown.stdout or command in ("server", "config")


@pytest.mark.process
@pytest.mark.smoke
def test_the_help_of_serve_is_the_servers(cli: Run) -> None:
    shown = cli("serve", "--help").stdout
    assert shown.startswith("Usage: client-lib serve [OPTIONS]")
    assert "--users-file" in shown
    assert cli("server", "token", "--help").stdout.startswith(
        "Usage: client-lib server token [OPTIONS]"
    )


@pytest.mark.process
@pytest.mark.smoke
@pytest.mark.parametrize(
    ("wrong", "code", "named"),
    [
        (["--prot", "80"], 2, "--prot"),
        (["--port", "x"], 2, "'x'"),
        (["--users-file", "/nowhere.toml"], 1, "/nowhere.toml"),
    ],
)
def test_a_server_that_can_not_start_says_why(
    cli: Run, wrong: list[str], code: int, named: str
) -> None:
    ended = cli("serve", *wrong)
    assert ended.returncode == code
    assert ended.stderr.startswith("Error: ")
    assert named in ended.stderr.splitlines()[0]


@pytest.mark.parametrize("behind", [[], ["nonsense"], ["list", "--nonsense"]])
def test_the_version_whatever_follows(cli: Run, behind: list[str]) -> None:
    from client_lib.version import this_version

    shown = cli("--version", *behind)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == f"client-lib {this_version()}\n"


@pytest.mark.parametrize(
    ("line", "about"),
    [
        (["lst"], "there is no command 'lst'; did you mean 'list'?"),
        (["list", "--stat", "RUNNING"], "--state"),
        (["list", "-n", "0"], "'-n'"),
        (["delete"], "NAME"),
        (["logs", "--rank", "-1", "x"], "--rank"),
        (["logs", "--collapse", "-o", "json", "x"], "--collapse is for text"),
        (["logs", "-C", "3", "x"], "-C needs --grep"),
        (["submit", "--collapse", "train.py"], "add -f"),
        (["submit", "--name"], "`client-lib submit --help` lists"),
        (["metrics", "--watch", "-o", "json", "x"], "Error: --watch prints text"),
        (["wait", "--timeout", "soon", "x"], "--timeout"),
        (["config", "use", "nowhere"], "no profile 'nowhere'"),
        (["list", "--profile", "nowhere"], "no profile 'nowhere'"),
        (["list", "--endpoint", "ftp://x"], "'ftp://x'"),
    ],
)
def test_wrong_usage_is_2_and_explained_on_stderr(cli: Run, line: list[str], about: str) -> None:
    wrong = cli(*line)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert about in wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    "line",
    [["list"], ["status", "x"], ["instances"], ["cancel", "x"], ["logs", "x"], ["wait", "x"]],
)
def test_a_server_that_does_not_answer_is_4_and_says_the_way_out(cli: Run, line: list[str]) -> None:
    refused = cli(*line, "--endpoint", "http://127.0.0.1:9")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "http://127.0.0.1:9 does not answer (connection refused)" in refused.stderr
    assert "`client-lib serve`" in refused.stderr


@pytest.mark.parametrize(
    ("status", "body", "code", "about"),
    [
        (403, {"code": "forbidden", "message": "not for you"}, 5, "not for you"),
        (422, {"code": "invalid_request", "message": "bad cursor"}, 2, "bad cursor"),
        (503, {"code": "unavailable", "message": "starting"}, 4, "starting"),
        (502, b"<html><h1>Bad Gateway</h1></html>", 4, "502"),
        (200, b"<html>another program</html>", 4, "another program"),
        (200, b'{"jobs": [', 4, "answer"),
        (200, {"something": "else"}, 4, "answer"),
        (404, b"not here", 4, "404"),
    ],
)
def test_what_the_server_refuses_or_garbles(
    small_server: SmallServer, cli: Run, status: int, body: Any, code: int, about: str
) -> None:
    small_server.answers["GET", "/api/v1/jobs"] = status, body
    refused = cli("list")
    assert (refused.returncode, refused.stdout) == (code, "")
    assert about in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_token_goes_along(small_server: SmallServer, cli: Run) -> None:
    cli("list", CLIENT_LIB_TOKEN="s3cret")
    assert small_server.tokens == ["Bearer s3cret"]


@pytest.mark.process
@pytest.mark.smoke
def test_a_reader_that_goes_away_ends_the_command_without_a_word(
    small_server: SmallServer, environment: dict[str, str]
) -> None:
    small_server.add(*(job_info(f"job-{number}", message="x" * 2000) for number in range(200)))
    command = subprocess.Popen(
        [*CLI, "list", "--all", "-o", "json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout
    assert command.stderr
    command.stdout.read(10)
    command.stdout.close()
    assert (command.wait(timeout=30), command.stderr.read()) == (141, b"")


@pytest.mark.process
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a disk that is always full")
def test_a_full_disk_is_said_in_a_line(
    small_server: SmallServer, environment: dict[str, str]
) -> None:
    small_server.add(job_info("one"))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*CLI, "list"],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 28] No space left on device\n")


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "code"),
    [("list -o name <&-", 0), ("list 1>&-", 0), ("list 2>&-", 0), ("cancel <&-", 2)],
)
def test_a_closed_stream_is_an_empty_one(
    small_server: SmallServer, environment: dict[str, str], line: str, code: int
) -> None:
    small_server.add(job_info("one"))
    line = f"{shlex.join(CLI)} {line}"
    done = subprocess.run(
        line, shell=True, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


@pytest.mark.process
def test_ctrl_c_before_a_command_runs_shows_no_traceback(environment: dict[str, str]) -> None:
    program = (
        "from client_lib.cli import app, main\ndef run(): raise KeyboardInterrupt\napp.run = "
        "run\nexit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, b"")


@pytest.mark.process
def test_a_current_folder_that_was_removed_is_said(
    environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    line = f'rmdir "$PWD"; {shlex.join(CLI)} submit /train.py'
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "Error: the current folder was removed\nchange to another\n",
    )


def test_a_folder_that_cannot_be_made_is_named(
    small_server: SmallServer, cli: Run, tmp_path: Path
) -> None:
    small_server.add(job_info("one"))
    (tmp_path / "a-file").touch()
    file = {
        "path": "a.pt",
        "size": 1,
        "sha256": "0" * 64,
        "modified_at": "2026-01-02T03:04:05Z",
        "attempt": 1,
        "worker": 0,
    }
    small_server.answers["GET", "/api/v1/jobs/one/outputs"] = 200, {"files": [file], "final": True}
    refused = cli("download", "one", "a-file/outputs")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Error: [Errno 20] Not a directory: ")


@pytest.mark.process
@pytest.mark.smoke
def test_text_that_the_terminal_cannot_hold_is_escaped(small_server: SmallServer, cli: Run) -> None:
    small_server.add(
        job_info("one", State.PENDING, message="wartet auf gr\u00fcn \u2014 \U0001f600")
    )
    shown = cli("list", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert shown.returncode == 0
    assert "gr\\xfcn" in shown.stdout
