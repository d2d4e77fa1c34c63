"""Records the conversations of this client with this server in the golden files of a version.

`python -m tests.compat.record VERSION`, or `make release`, which calls it. The files of a version
are never changed after its release.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.compat import golden
from tests.compat.conversations import ALL
from tests.compat.golden import Conversation, Exchange, Happening, Step
from tests.compat.sockets import Recorder
from tests.compat.stage import Stage, user_of


def recorded(name: str, folder: Path) -> str:
    """The text of a golden file: one conversation, held now in an empty folder."""
    stage = Stage.in_folder(folder)
    try:
        with Recorder(stage.url) as recorder:

            def happens(*words: str) -> None:
                recorder.steps.append(Happening(words))
                stage.happens(*words)

            with user_of(recorder.url, stage.tokens["ann"], folder, happens) as user:
                shown: Any = ALL[name](user)
    finally:
        stage.stop()
    text = golden.as_text(Conversation(json.loads(json.dumps(shown)), recorder.steps))
    stand_ins = stage.stand_ins(folder, recorder.url)
    steps = _without_repetitions(golden.parsed(stand_ins.put_in(text)))
    return golden.as_text(steps)


def _without_repetitions(conversation: Conversation) -> Conversation:
    """The conversation without each exchange that equals the exchange before it of the same
    request.
    """
    kept: list[Step] = []
    last: dict[tuple[str, str], Exchange] = {}
    for step in conversation.steps:
        if isinstance(step, Exchange):
            key = (step.request.method, step.request.path)
            if last.get(key) == step:
                continue
            last[key] = step
        kept.append(step)
    return conversation._replace(steps=kept)


def main() -> None:
    """Write the golden files of the version that the command line names."""
    parser = argparse.ArgumentParser(description="Record the golden files.")
    parser.add_argument("version")
    version = parser.parse_args().version
    for unreleased in golden.FOLDER.glob("*.dev*"):
        shutil.rmtree(unreleased)
    shutil.rmtree(golden.FOLDER / version, ignore_errors=True)
    for name in ALL:
        with tempfile.TemporaryDirectory() as folder:
            text = recorded(name, Path(folder).resolve())
        file = golden.file_of(version, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        print(f"{file.relative_to(golden.FOLDER)}: {len(text)} characters")


if __name__ == "__main__":
    main()
