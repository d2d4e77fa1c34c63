"""The server's own log is lines of JSON and doesn't grow for ever."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from server_stub.server_log import JsonLines, rotate

ROTATE = """
import sys
from pathlib import Path
from server_stub.server_log import rotate
print("x" * 1000, file=sys.stderr, flush=True)
small, large = rotate(Path(sys.argv[1]), 1500), rotate(Path(sys.argv[1]), 500)
print(small, large, file=sys.stderr, flush=True)
"""


WITHOUT_FILES = """
import resource, sys
from pathlib import Path
from server_stub.server_log import rotate
print("x" * 1000, file=sys.stderr, flush=True)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
first = rotate(Path(sys.argv[1]), 500)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
second = rotate(Path(sys.argv[1]), 500)
print(first, second, file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("program", [ROTATE, WITHOUT_FILES])
def test_a_log_that_grew_too_large_is_put_aside_and_writing_goes_on(
    tmp_path: Path, program: str
) -> None:
    path = tmp_path / "server.log"
    with path.open("ab") as log:
        subprocess.run(
            [sys.executable, "-c", program, str(path)], stdout=log, stderr=log, check=True
        )
    assert path.read_text() == "False True\n"
    assert (tmp_path / "server.log.1").read_text() == "x" * 1000 + "\n"


def test_another_s_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    assert not rotate(path, 1)
    path.write_text("other" * 100)
    assert not rotate(path, 1)
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_holds_the_traceback_and_stays_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord(
            "a.b", logging.ERROR, "f", 1, "it %s\n", ("failed",), sys.exc_info()
        )
    line = JsonLines().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "a.b", "it failed\n")
    assert "ValueError: two" in found["traceback"]
