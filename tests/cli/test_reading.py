"""`list`, `status`, `instances`: what they print, in which form, and what they load for it."""

import fcntl
import io
import json
import os
import struct
import subprocess
import sys
import termios
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from client_lib import Client, Explanation, get_job
from client_lib.cli import printer
from client_lib.reports.explanation import Part
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, EventList, Failure, JobInfo, WorkerInfo
from client_lib.version import this_version
from tests.kit.jobs import CREATED, job_info
from tests.kit.small_server import SmallServer

from .conftest import Run
from .terminal import Terminal

HISTORY = [
    (State.PENDING, Reason.QUEUED),
    (State.RUNNING, Reason.RUNNING),
    (State.FAILED, Reason.EXIT_CODE),
]


def test_a_list_in_a_pipe_is_aligned_and_free_of_tabs(small_server: SmallServer, cli: Run) -> None:
    small_server.add(
        job_info("short"),
        job_info(
            "a-much-longer-name", State.PENDING, Reason.QUEUED, message="waits for\t2 of 8 GPUs"
        ),
    )
    lines = cli("list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "TOOK", "AGE", "SIZE", "SCRIPT", "WHY"]
    assert [line.split()[0] for line in lines[1:]] == ["a-much-longer-name", "short"]
    assert "\t" not in "".join(lines)
    assert (
        len(
            {
                line.index(state)
                for line, state in zip(lines, ("STATE", "PENDING", "RUNNING"), strict=True)
            }
        )
        == 1
    )
    assert lines[1].endswith("2     train.py  Queued: waits for 2 of 8 GPUs")
    assert lines[2].endswith("2     train.py  -")


def test_a_list_is_sorted_and_has_the_columns_that_are_asked_for(
    small_server: SmallServer, cli: Run
) -> None:
    ended: dict[str, Any] = {"started_at": CREATED, "message": "x"}
    for name, seconds in (("one", 100), ("two", 2), ("three", 30)):
        small_server.add(
            job_info(
                name, State.SUCCEEDED, **ended, finished_at=CREATED + timedelta(seconds=seconds)
            )
        )
    assert cli("list", "--sort", "-took", "--columns", "name, took").stdout.split("\n")[1:-1] == [
        "one    1m40s",
        "three  30s",
        "two    2s",
    ]
    assert cli("list", "--sort", "took", "-o", "name").stdout == "two\nthree\none\n"
    wrong = cli("list", "--sort", "price")
    assert wrong.returncode == 2
    assert "there is no column 'price'; there are name, state, took" in wrong.stderr


def test_control_characters_of_a_job_do_not_reach_the_terminal(
    small_server: SmallServer, cli: Run
) -> None:
    small_server.add(
        job_info(
            "a", spec={"script": "x.py", "job_desc": "\x1b[31mred"}, message="\x1b]0;title\x07"
        )
    )
    assert "\x1b" not in cli("list").stdout + cli("status", "a").stdout


def test_list_as_json_is_the_jobs_as_the_wire_defines_them(
    small_server: SmallServer, cli: Run
) -> None:
    small_server.add(job_info("one"), job_info("two"))
    shown = json.loads(cli("list", "-o", "json").stdout)
    assert [JobInfo.model_validate(each) for each in shown] == [
        small_server.jobs["two"],
        small_server.jobs["one"],
    ]
    assert set(shown[0]) == set(JobInfo.model_fields)


def test_status_as_json_is_one_job_as_the_wire_defines_it(
    small_server: SmallServer, cli: Run
) -> None:
    small_server.add(job_info("one"))
    assert (
        JobInfo.model_validate_json(cli("status", "one", "-o", "json").stdout)
        == small_server.jobs["one"]
    )


def test_names_alone_are_a_line_each(small_server: SmallServer, cli: Run) -> None:
    small_server.add(job_info("one"), job_info("two"))
    assert cli("list", "-o", "name").stdout == "two\none\n"
    assert cli("status", "one", "-o", "name").stdout == "one\n"


def test_filters_reach_the_server(small_server: SmallServer, cli: Run) -> None:
    cli(
        "list",
        "--state",
        "running",
        "-l",
        "team=vision",
        "-l",
        "k=a b",
        "--name",
        "train",
        "-n",
        "7",
    )
    assert small_server.asked == [
        ("GET", "/api/v1/jobs?state=RUNNING&name=train&label=team%3Dvision&label=k%3Da+b&limit=7")
    ]


def test_the_default_list_says_that_there_is_more_and_all_shows_all(
    small_server: SmallServer, cli: Run
) -> None:
    small_server.add(*(job_info(f"job-{number}") for number in range(230)))
    first, everything = cli("list", "-o", "name"), cli("list", "--all", "-o", "name")
    assert len(first.stdout.split()) == 50
    assert "--all shows all" in first.stderr
    assert len(everything.stdout.split()) == 230
    assert everything.stderr == ""


def test_an_empty_list_says_so_beside_the_data(small_server: SmallServer, cli: Run) -> None:
    assert (cli("list").stdout, cli("list", "-o", "json").stdout) == ("", "[]\n")
    assert "no jobs; `client-lib submit SCRIPT` starts one" in cli("list").stderr


def test_status_of_a_failed_job_is_the_report(small_server: SmallServer, cli: Run) -> None:
    failure = Failure(
        rank=3,
        worker=1,
        exit_code=137,
        meaning="killed",
        last_lines=["step 7", "step 8"],
        hint="ask for more memory",
    )
    workers = [
        WorkerInfo(worker=0, state="ended", exit_code=0),
        WorkerInfo(worker=1, state="ended", exit_code=137),
    ]
    small_server.add(
        job_info(
            "bad",
            State.FAILED,
            Reason.OUT_OF_MEMORY,
            failure=failure,
            workers=workers,
            notices=["on the CPU"],
        )
    )
    shown = cli("status", "bad").stdout
    for part in (
        "FAILED",
        "rank 3 on worker 1",
        "137",
        "killed",
        "step 8",
        "hint: ask for more memory",
        "on the CPU",
    ):
        assert part in shown


def test_status_shows_the_threads_of_a_process_where_the_server_has_chosen_them(
    small_server: SmallServer, cli: Run
) -> None:
    small_server.add(
        job_info("one", workers=[WorkerInfo(worker=0, threads=4)]),
        job_info("two", workers=[WorkerInfo(worker=0)]),
    )
    assert "4 in every process (OMP_NUM_THREADS" in cli("status", "one").stdout
    assert "OMP_NUM_THREADS" not in cli("status", "two").stdout


def test_status_names_the_next_command_on_stderr(small_server: SmallServer, cli: Run) -> None:
    small_server.add(job_info("one"), job_info("done", State.SUCCEEDED, Reason.COMPLETED))
    assert "`client-lib logs one -f`" in cli("status", "one").stderr
    assert "`client-lib logs done`" in cli("status", "done").stderr


def test_advice_ends_after_the_first_ten_runs(
    small_server: SmallServer, cli: Run, tmp_path: Path
) -> None:
    small_server.add(job_info("one"))
    (tmp_path / ".config.toml.runs").write_text("." * 10)
    assert "`client-lib logs one -f`" in cli("status", "one").stderr
    (tmp_path / ".config.toml.runs").write_text("." * 11)
    assert cli("status", "one").stderr == ""


def test_events_have_their_times_and_reasons(small_server: SmallServer, cli: Run) -> None:
    event = {
        "time": "2026-01-02T03:04:05Z",
        "attempt": 1,
        "state": "PENDING",
        "reason": "Queued",
        "message": "waits",
    }
    small_server.add(job_info("one"))
    small_server.answers["GET", "/api/v1/jobs/one/events"] = 200, {"events": [event]}
    assert cli("status", "one", "--events").stdout.splitlines()[1].split() == [
        *("2026-01-02T03:04:05Z", "1", "PENDING", "Queued", "waits")
    ]
    assert (
        json.loads(cli("status", "one", "--events", "-o", "json").stdout)[0]["reason"] == "Queued"
    )


def test_instances_are_listed_in_each_form(small_server: SmallServer, cli: Run) -> None:
    kinds = [{"name": "a100.8gpu", "gpus": 8, "cpu": 96, "memory_gib": 1000.5, "available": None}]
    small_server.answers["GET", "/api/v1/instance-types"] = 200, {"instance_types": kinds}
    assert cli("instances").stdout.splitlines()[1].split() == [
        "a100.8gpu",
        "8",
        "96",
        "1000.5",
        "GiB",
        "?",
        "-",
    ]
    assert cli("instances", "-o", "name").stdout == "a100.8gpu\n"
    assert json.loads(cli("instances", "-o", "json").stdout)[0]["gpus"] == 8


def test_doctor_fails_where_a_check_fails(small_server: SmallServer, cli: Run) -> None:
    small_server.answers["GET", "/api/v1/info"] = (
        200,
        {"version": "0.1.0", "runtime": "local", "user": "ann"},
    )
    check = {"name": "disk", "ok": False, "message": "the disk is full", "fix": "make room"}
    small_server.answers["GET", "/api/v1/doctor"] = 200, {"checks": [check]}
    found = cli("doctor")
    assert found.returncode == 1
    assert "the disk is full" in found.stdout
    assert [each["name"] for each in json.loads(cli("doctor", "-o", "json").stdout)] == [
        "python",
        "client",
        "server",
        "disk",
    ]


def test_doctor_does_not_look_at_the_python_of_this_shell_where_jobs_run_with_that_of_an_image(
    small_server: SmallServer, cli: Run
) -> None:
    small_server.answers["GET", "/api/v1/info"] = (
        200,
        {"version": "0.1.0", "runtime": "kubernetes", "user": "ann"},
    )
    small_server.answers["GET", "/api/v1/doctor"] = 200, {"checks": []}
    names = [each["name"] for each in json.loads(cli("doctor", "-o", "json").stdout)]
    assert names == ["client", "server"]


def test_doctor_tells_the_versions_and_commits_of_client_and_server(
    small_server: SmallServer, cli: Run
) -> None:
    info = {"version": "9.8.7", "commit": "ab" * 20, "runtime": "kubernetes", "user": "ann"}
    small_server.answers["GET", "/api/v1/info"] = 200, info
    small_server.answers["GET", "/api/v1/doctor"] = 200, {"checks": []}
    of_client, of_server = json.loads(cli("doctor", "-o", "json").stdout)
    assert of_client["message"] == f"version {this_version()}"
    assert "version 9.8.7 (commit abababababab), user ann" in of_server["message"]


def test_doctor_without_a_server_says_what_is_wrong(small_server: SmallServer, cli: Run) -> None:
    found = cli("doctor", "--endpoint", "http://127.0.0.1:9")
    assert found.returncode == 1
    assert "127.0.0.1:9 does not answer" in found.stdout


@pytest.mark.parametrize(
    ("config", "about"),
    [
        ('profile = "lab', "is not valid TOML"),
        ('profile = "lab"', "no profile 'lab'"),
        ("[profiles.a]\nurl = 1", "'url'"),
    ],
)
def test_doctor_tells_what_is_wrong_with_the_configuration(
    cli: Run, tmp_path: Path, config: str, about: str
) -> None:
    (tmp_path / "config.toml").write_text(config)
    found = cli("doctor")
    assert found.returncode == 1
    assert (about in found.stdout, str(tmp_path / "config.toml") in found.stdout, found.stderr) == (
        True,
        True,
        "",
    )


@pytest.mark.parametrize(
    "command", [["list"], ["status", "x"], ["logs", "x"], ["wait", "x"], ["cancel", "x"]]
)
def test_a_page_in_place_of_an_answer_is_told_with_its_address(
    small_server: SmallServer, cli: Run, command: list[str]
) -> None:
    for method, path in (
        ("GET", "/api/v1/jobs"),
        ("GET", "/api/v1/jobs/x"),
        ("POST", "/api/v1/jobs/x/cancel"),
    ):
        small_server.answers[method, path] = 200, b"<html><body><h1>Sign in</h1></body></html>"
    told = cli(*command)
    assert (told.returncode, told.stdout) == (4, "")
    assert small_server.url in told.stderr
    assert "Sign in" in told.stderr
    assert "<h1>" not in told.stderr


@pytest.mark.process
@pytest.mark.smoke
@pytest.mark.parametrize(
    "command",
    [
        ["status", "one"],
        ["list"],
        ["list", "-o", "json"],
        ["logs", "one"],
        ["instances"],
        ["--help"],
    ],
)
def test_what_people_type_all_day_loads_neither_requests_nor_pydantic(
    small_server: SmallServer, environment: dict[str, str], command: list[str]
) -> None:
    small_server.add(job_info("one"))
    small_server.answers["GET", "/api/v1/jobs/one/logs"] = 200, b"@end {}\n"
    small_server.answers["GET", "/api/v1/instance-types"] = 200, {"instance_types": []}
    loaded = (
        "; print(sorted({'requests', 'pydantic', 'rich', 'urllib3', 'yaml', 'server_stub'} & "
        "set(sys.modules)))"
    )
    code = (
        f"import sys; from client_lib.cli.app import run; code = run({command!r}){loaded}; "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.process
@pytest.mark.smoke
def test_a_terminal_shows_each_job_on_one_line_and_wide_shows_all(
    small_server: SmallServer, environment: dict[str, str]
) -> None:
    words = {"script": "train.py", "args": ["--data", "/a/very/long/path/of/the/data"]}
    small_server.add(
        job_info("one", State.FAILED, Reason.EXIT_CODE, spec=words, message="word " * 40 + "end"),
        job_info("fine"),
    )
    environment["COLUMNS"] = "80"
    with Terminal("list", environment=environment) as terminal:
        shown = terminal.read_to_end().decode().split("\r\n")
    assert len(shown) == 4, "a heading, two jobs, and the end of the last line"
    assert (shown[2].count("…"), "end" in shown[2]) == (2, False)
    with Terminal("list", "-o", "wide", environment=environment) as terminal:
        shown = terminal.read_to_end().decode().split("\r\n")
    assert shown[2].endswith(
        "--data /a/very/long/path/of/the/data  ExitCode: " + "word " * 40 + "end"
    )


@pytest.mark.process
@pytest.mark.smoke
def test_a_terminal_gets_a_table_of_rich(
    small_server: SmallServer, environment: dict[str, str]
) -> None:
    small_server.add(
        job_info("one"),
        job_info("other", State.FAILED, Reason.EXIT_CODE, message="[red]not markup[/red]"),
    )
    with Terminal("list", environment=environment) as terminal:
        shown = terminal.read_to_end()
    assert b"\x1b[" in shown
    assert b"[red]not markup[/red]" in shown


def test_explain_is_the_text_of_the_sdk_with_commands_in_the_place_of_calls(
    small_server: SmallServer, cli: Run
) -> None:
    small_server.add(
        job_info(
            "bad",
            State.FAILED,
            Reason.EXIT_CODE,
            failure=Failure(rank=0, exit_code=1, hint="\x1b]0;set X"),
        )
    )
    happened = Event(
        time=CREATED, attempt=1, state=State.PENDING, reason=Reason.QUEUED, message="accepted"
    )
    small_server.answers["GET", "/api/v1/jobs/bad/events"] = (
        200,
        EventList(events=[happened]).model_dump(mode="json"),
    )
    *shown, step = cli("explain", "ba").stdout.splitlines()
    in_python = get_job("bad", client=Client(small_server.url)).explain().replace("\x1b", "␛")
    assert shown == in_python.splitlines()[:-1]
    assert step == "next: `client-lib logs bad --rank 0` shows its output"
    assert "    2026-01-02T03:04:05Z  PENDING (Queued): accepted" in shown


@pytest.mark.process
@pytest.mark.smoke
def test_a_terminal_shows_a_report_in_colours_and_wraps_advice_between_words(
    small_server: SmallServer, environment: dict[str, str]
) -> None:
    hint = (
        "the job's interpreter does not find the module: add requirements=['flash_attn'], or "
        "install it by hand"
    )
    failure = Failure(
        rank=1, exit_code=1, exception="ImportError: no", last_lines=["\x1b[31ma line"], hint=hint
    )
    small_server.add(job_info("bad", State.FAILED, Reason.EXIT_CODE, failure=failure))
    environment["COLUMNS"] = "60"
    with Terminal("status", "bad", environment=environment) as terminal:
        shown = terminal.read_to_end().decode().replace("\r\n", "\n")
    assert "\x1b[1;31mjob bad FAILED (ExitCode): rank 1 ended with exit code 1\x1b[0m\n" in shown
    assert "\x1b[1mImportError: no\x1b[0m\n" in shown
    assert "    a line\n" in shown
    assert "\x1b[33mhint: the job's interpreter does not find the module: add\x1b[0m\n" in shown
    assert "\x1b[33m      --requirement flash_attn, or install it by hand\x1b[0m\n" in shown
    assert "\x1b[2mnext: `client-lib logs bad --rank 1` shows its output\x1b[0m" in shown
    with Terminal("status", "bad", environment={**environment, "NO_COLOR": "1"}) as terminal:
        assert b"\x1b[1;31m" not in terminal.read_to_end()


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_without_colours_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Screen()
    printer.report([Part("summary", "job bad FAILED")], terminal)
    assert terminal.getvalue() == "job bad FAILED\n"


def test_a_report_has_the_width_of_its_terminal_if_stdout_is_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    # no terminal, as a pipe; pytest's own stdout may be one
    monkeypatch.setattr(sys, "__stdout__", None)
    ours, theirs = os.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(ours) as screen, os.fdopen(theirs, "w") as stderr:
        printer.report([Part("hint", "word " * 10)], stderr)
        shown = [next(screen), next(screen)]
    assert shown == ["hint: word word word word word word\n", "      word word word word\n"]


def test_explain_as_json_has_the_fields_that_programs_rely_on(
    small_server: SmallServer, cli: Run
) -> None:
    failure = Failure(rank=0, worker=0, exit_code=1, hint="set X")
    small_server.add(
        job_info(
            "bad",
            State.FAILED,
            Reason.EXIT_CODE,
            failure=failure,
            message="rank 0 ended with exit code 1",
        )
    )
    happened = [
        Event(time=CREATED, attempt=1, state=state, reason=reason, message="m")
        for state, reason in HISTORY
    ]
    small_server.answers["GET", "/api/v1/jobs/bad/events"] = (
        200,
        EventList(events=happened).model_dump(mode="json"),
    )
    shown = json.loads(cli("explain", "bad", "-o", "json").stdout)
    in_python = (
        get_job("bad", client=Client(small_server.url)).explanation().model_dump(mode="json")
    )
    assert (
        Explanation.model_validate(shown).model_dump(mode="json") | {"next": in_python["next"]}
        == in_python
    )
    assert shown | {"failure": None, "events": [], "summary": ""} == {
        "job": "bad",
        "state": "FAILED",
        "reason": "ExitCode",
        "summary": "",
        "message": "rank 0 ended with exit code 1",
        "attention": [],
        "since": "2026-01-02T03:04:05Z",
        "attempt": 1,
        "workers": [],
        "failure": None,
        "stacks": [],
        "changed": "",
        "events": [],
        "next": ["set X", "`client-lib logs bad --rank 0` shows its output"],
    }
    assert shown["summary"] == cli("explain", "bad").stdout.splitlines()[0]
    assert (shown["failure"]["exit_code"], len(shown["events"])) == (1, len(HISTORY))
