"""The commands that docs/SKILL.md gives to coding agents."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib.cli.app import COMMANDS

SKILL = Path(__file__).parents[2] / "docs" / "SKILL.md"
BLOCKS = re.findall(r"```bash\n(.*?)```", SKILL.read_text(), re.DOTALL)


@pytest.mark.process
@pytest.mark.usefixtures("local_state")
def test_every_command_of_the_skill_runs(environment: dict[str, str], tmp_path: Path) -> None:
    assert len(BLOCKS) == 4
    environment |= {
        "VIRTUAL_ENV": sys.prefix,
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
    }
    ended = subprocess.run(
        ["bash", "-euxc", "".join(BLOCKS)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "step 100/100" in ended.stdout
    assert '"reason": "ExitCode"' in ended.stdout
    assert "KeyError" in ended.stdout


def test_every_command_of_the_skill_exists() -> None:
    named = set(re.findall(r"(?:^|`)client-lib ([a-z][a-z-]+)", SKILL.read_text(), re.MULTILINE))
    assert named == set(COMMANDS)
