"""The promise about damaged checkpoints: of 200 that were interrupted, at least 199 are judged as
the library that wrote them does, and no sound one is called damaged.
"""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.formats import FORMATS, Format, State, loads, state
from tests.checkpoints.kit import cut, found

ROUNDS = 40

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Score:
    """How often the verdict was that of the library."""

    def __init__(self) -> None:
        self.damaged = 0
        self.sound = 0
        self.wrong: list[str] = []

    def add(self, format: Format, folder: Path, wanted: State, what: str) -> None:
        is_sound = loads(format, folder / format.name, wanted)
        self.sound += is_sound
        self.damaged += not is_sound
        checkpoint = found(folder).get(format.name)
        if checkpoint is None:
            assert not is_sound, f"{format.name}, {what}: a sound checkpoint was not found"
            # nothing was written yet, or a file that the name does not tell from others
            return
        assert not (is_sound and checkpoint.is_proof), f"{format.name}, {what}: {checkpoint}"
        if bool(checkpoint.missing) == is_sound:
            self.wrong.append(f"{format.name}, {what}: {checkpoint}")


def test_a_checkpoint_cut_at_any_byte_is_judged_as_its_library_does(tmp_path: Path) -> None:
    chance = random.Random(20261129)
    wanted = state(1)
    score = Score()
    for format in FORMATS.values():
        folder = tmp_path / "of" / format.name
        folder.mkdir(parents=True)
        format.save(wanted, folder / format.name)
        score.add(format, folder, wanted, "as written")
        files = sorted(
            path for path in (folder / format.name, *folder.rglob("*/*")) if path.is_file()
        )
        for _ in range(ROUNDS):
            path = chance.choice(files)
            content = path.read_bytes()
            size = chance.randrange(len(content))
            cut(path, size)
            score.add(format, folder, wanted, f"{path.name} cut at {size} of {len(content)}")
            path.write_bytes(content)
    assert score.sound >= len(FORMATS)
    assert score.damaged > ROUNDS * len(FORMATS) * 0.95
    assert len(score.wrong) <= 1, "\n".join(score.wrong)


WRITER = """
import os, signal, sys, time
from pathlib import Path
from tests.checkpoints.formats import FORMATS, state
wanted = state(4)
print("ready", flush=True)
for line in sys.stdin:
    name, path, kill_after = line.split()
    started = time.monotonic()
    child = os.fork()
    if not child:
        FORMATS[name].save(wanted, Path(path))
        os._exit(0)
    if kill_after != "never":
        time.sleep(float(kill_after))
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(time.monotonic() - started, flush=True)
"""


class Writer:
    """A process whose children write checkpoints, until they are killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WRITER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Writer":
        assert self._answer() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            process.kill()

    def write(self, format: Format, path: Path, kill_after: float | None = None) -> float:
        """Seconds until the checkpoint was written, or its writer was killed."""
        after = "never" if kill_after is None else str(kill_after)
        assert self._process.stdin
        self._process.stdin.write(f"{format.name} {path} {after}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


@pytest.mark.process
@pytest.mark.parametrize("rounds", [5, pytest.param(ROUNDS, marks=pytest.mark.long)])
def test_a_checkpoint_whose_writer_is_killed_is_judged_as_its_library_does(
    tmp_path: Path, rounds: int
) -> None:
    chance = random.Random(8)
    wanted = state(4)
    score = Score()
    with Writer() as writer:
        for format in FORMATS.values():
            folder = tmp_path / "of" / format.name
            folder.mkdir(parents=True)
            # the one before, by which a later one is known to be of the same trainer
            earlier = writer.write(format, folder / format.name.replace("2", "0"))
            seconds = min(earlier, writer.write(format, folder / format.name.replace("2", "1")))
            path = folder / format.name
            for _ in range(rounds):
                after = chance.uniform(0, 1.1 * seconds)
                writer.write(format, path, after)
                score.add(format, folder, wanted, f"killed after {after:.4f} of {seconds:.4f} s")
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
    print(f"{score.sound} sound, {score.damaged} damaged, {len(score.wrong)} judged wrongly")
    assert score.damaged >= rounds
    assert len(score.wrong) <= 1, "\n".join(score.wrong)
