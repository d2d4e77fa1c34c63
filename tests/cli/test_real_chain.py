"""Jobs that wait for others, by the command line, with the real local server and real processes."""

import sys
from pathlib import Path

import pytest

from .conftest import Run
from .test_real_jobs import fresh_shell, shell  # noqa: F401  # fixtures

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="jobs don't run on Windows itself"),
]
SCRIPT = """
import os, pathlib, sys
kept = pathlib.Path(os.environ["CLIENT_LIB_CHECKPOINT_DIR"], "last.txt")
print("found", kept.read_text() if kept.exists() else "nothing")
kept.write_text(sys.argv[1])
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.usefixtures("shell")
def test_jobs_run_one_after_another_from_copies_of_checkpoints_or_not_at_all(
    cli: Run, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def submit(name: str, *words: str) -> None:
        head, tail = words[:-2], words[-2:]
        done = cli("submit", "--name", name, *head, str(script), *tail)
        assert done.returncode == 0, done.stderr

    submit("chain-a", "one", "0")
    submit("chain-b", "--after", "chain-a", "--checkpoint-from", "chain-a", "two", "1")
    submit("chain-c", "--after", "chain-a", "--after", "ok:chain-b", "three", "0")
    submit("chain-d", "--after", "failed:chain-b", "--checkpoint-from", "chain-b", "four", "0")
    assert cli("wait", "chain-a").returncode == 0
    submit("chain-e", "--after", "any:chain-c", "--checkpoint-from", "chain-a", "five", "0")
    assert [cli("wait", f"chain-{letter}").returncode for letter in "abcde"] == [0, 1, 1, 0, 0]
    found = {"a": "nothing", "b": "one", "d": "two", "e": "one"}
    assert {letter: cli("logs", f"chain-{letter}").stdout.split()[-1] for letter in found} == found
    why = cli("explain", "chain-c").stdout
    assert (
        "FAILED (DependencyFailed): chain-b is FAILED, and this job starts only after that has "
        "succeeded"
    ) in why
    assert "`client-lib resubmit chain-c --set after=NEW-NAME`" in why

    for words, code, message in (
        (["--after", "okay:chain-a"], 2, "'okay' is no condition"),
        (["--after", ""], 2, "is not a DNS label"),
        (["--after", "chain-z"], 5, "no job named chain-z"),
        (["--after", "chain-a", "--after", "ok:chain-a"], 2, "names chain-a more than once"),
        (["--name", "me", "--after", "me"], 2, "me would wait for itself"),
        (["--checkpoint-from", "chain-z"], 5, "no job named chain-z"),
        (["--checkpoint-from", "chain-a", "--checkpoint-dir", "x"], 2, "leave checkpoint_dir out"),
    ):
        refused = cli("submit", *words, str(script), "x", "0")
        assert (refused.returncode, message in refused.stderr) == (code, True), refused.stderr
