"""What a shell is offered: commands, options, names of jobs; and nothing at
all when something is wrong.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from client_lib.cli import app
from tests.kit.jobs import job_info
from tests.kit.small_server import SmallServer

from .conftest import Run


def offered(cli: Run, *words: str, **variables: str) -> list[str]:
    """The words that bash is offered for the last of `words`."""
    asked = cli(
        _CLIENT_LIB_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(words),
        COMP_CWORD=str(len(words) - 1),
        **variables,
    )
    assert asked.stderr == ""
    return asked.stdout.split()


@pytest.mark.parametrize(
    ("shell", "word", "expected"),
    [
        ("bash", "3", ["plain,train-2", "plain,train-1"]),
        ("fish", "tr", ["plain,train-2", "plain,train-1"]),
        ("zsh", "3", ["plain", "train-2", "_", "plain", "train-1", "_"]),
    ],
)
def test_the_lines_that_an_earlier_version_wrote_are_answered(
    small_server: SmallServer, cli: Run, shell: str, word: str, expected: list[str]
) -> None:
    small_server.add(job_info("train-1"), job_info("train-2"), job_info("other"))
    asked = cli(
        _CLIENT_LIB_COMPLETE=f"{shell}_complete",
        COMP_WORDS="client-lib logs -f tr",
        COMP_CWORD=word,
    )
    assert (asked.stdout.split(), asked.stderr) == (expected, "")


@pytest.mark.smoke
def test_commands_and_options(cli: Run) -> None:
    assert offered(cli, "client-lib", "res") == ["resubmit"]
    assert offered(cli, "client-lib", "--version", "res") == ["resubmit"]
    assert offered(cli, "client-lib", "list", "--sta") == ["--state"]
    assert offered(cli, "client-lib", "submit", "--type", "bin") == ["binary", "binary_exp"]


def test_fish_and_zsh_show_what_an_option_of_a_job_does(cli: Run) -> None:
    asked = cli(
        _CLIENT_LIB_COMPLETE="complete_fish",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
        _TYPER_COMPLETE_ARGS="client-lib submit --shm",
    )
    assert asked.stdout.split("\t") == [
        "--shm-size-class",
        "Size of /dev/shm: 16, 32 or 64 GiB per GPU.\n",
    ]


@pytest.mark.parametrize("command", ["status", "logs", "wait", "cancel", "delete", "resubmit"])
def test_names_of_jobs(small_server: SmallServer, cli: Run, command: str) -> None:
    small_server.add(job_info("train-1"), job_info("train-2"), job_info("other"))
    assert offered(cli, "client-lib", command, "tr") == ["train-2", "train-1"]


def test_names_of_profiles(cli: Run) -> None:
    for name in ("lab", "lake", "cloud"):
        assert cli("config", "set", name, "endpoint=http://127.0.0.1:9").returncode == 0
    assert offered(cli, "client-lib", "list", "--profile", "la") == ["lab", "lake"]
    assert offered(cli, "client-lib", "--profile", "l") == ["lab", "lake", "local"]
    assert offered(cli, "client-lib", "config", "use", "c") == ["cloud"]


def test_an_unknown_command_is_offered_nothing(cli: Run) -> None:
    assert offered(cli, "client-lib", "nonsense", "tr") == []


def test_without_a_server_nothing_is_offered_and_none_is_started(
    environment: dict[str, str], cli: Run, tmp_path: Path
) -> None:
    assert offered(cli, "client-lib", "status", "") == []
    assert not (tmp_path / "state").exists()
    assert offered(cli, "client-lib", "status", "", CLIENT_LIB_ENDPOINT="http://127.0.0.1:9") == []


def test_a_server_that_answers_nonsense_offers_nothing(small_server: SmallServer, cli: Run) -> None:
    small_server.answers["GET", "/api/v1/jobs"] = 200, b"<html>"
    assert offered(cli, "client-lib", "status", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_lines_for_a_shell(cli: Run, shell: str) -> None:
    shown = cli("completion", shell)
    assert shown.returncode == 0
    assert f"_CLIENT_LIB_COMPLETE=complete_{shell}" in shown.stdout
    assert cli("completion", SHELL=f"/usr/bin/{shell}").stdout == shown.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_lines(cli: Run) -> None:
    lines = cli("completion", "bash").stdout
    assert (
        subprocess.run(
            ["bash", "-n"], input=lines, text=True, capture_output=True, check=False
        ).stderr
        == ""
    )


@pytest.mark.process
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_bash_that_took_the_lines_completes_names_of_jobs(
    small_server: SmallServer, environment: dict[str, str]
) -> None:
    small_server.add(job_info("train-1"), job_info("train-2"), job_info("other"))
    asks = """
        source <(client-lib completion bash)
        COMP_WORDS=(client-lib logs -f tr) COMP_CWORD=3
        "$(complete -p client-lib | sed 's/.*-F \\([^ ]*\\).*/\\1/')" client-lib
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    here = {
        **environment,
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), environment["PATH"]]),
    }
    done = subprocess.run(
        ["bash", "-c", asks], env=here, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["train-2", "train-1"], "")


def test_an_unknown_shell_is_wrong_usage(cli: Run) -> None:
    assert cli("completion", SHELL="/bin/tcsh").returncode == 2


ACTING = {
    *(
        "init",
        "run",
        "wait",
        "cancel",
        "delete",
        "prune",
        "serve",
        "server stop",
        "server restart",
        "server token",
    ),
    *(
        "server check",
        "code",
        "config set",
        "config use",
        "login",
        "logout",
        "mls-config",
        "completion",
        "exec",
        "shell",
        "port-forward",
    ),
}
"""Commands that do something instead of reading jobs or settings: they print at most
a sentence for each thing.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """All commands of the registry with those of their groups."""
    group: Any = get_command(app.app)
    for name in app.COMMANDS:
        found = group.get_command(None, name)
        below = getattr(found, "commands", None)
        yield from (
            [(f"{name} {inner}", each) for inner, each in below.items()]
            if below
            else [(name, found)]
        )


@pytest.mark.parametrize(
    ("name", "command"), [pytest.param(*each, id=each[0]) for each in commands()]
)
def test_each_command_that_reads_has_json_and_each_name_of_a_job_is_completed(
    name: str, command: Any
) -> None:
    forms = [parameter.type.choices for parameter in command.params if "--output" in parameter.opts]
    assert forms or name in ACTING
    assert all("json" in choices for choices in forms)
    arguments = [
        parameter for parameter in command.params if parameter.param_type_name == "argument"
    ]
    names = [argument for argument in arguments if "NAME" in (argument.metavar or "")]
    assert all(argument._custom_shell_complete for argument in names)
    assert names or name not in (
        "status",
        "logs",
        "metrics",
        "download",
        "wait",
        "cancel",
        "delete",
        "resubmit",
    )


def test_the_names_of_jobs_are_offered_by_every_command(
    small_server: SmallServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_server.add(job_info("train-1"), job_info("other"))
    monkeypatch.setenv("CLIENT_LIB_ENDPOINT", small_server.url)
    asked = 0
    for name, command in commands():
        context = typer.Context(command)
        for parameter in command.params:
            if parameter.param_type_name == "argument" and "NAME" in (parameter.metavar or ""):
                offers = [each.value for each in parameter.shell_complete(context, "tr")]
                assert (name, offers) == (name, ["train-1"])
                asked += 1
    assert asked > 15
