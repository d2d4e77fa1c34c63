"""`python -m server_stub` that stands still in the middle of storing a group: `PAUSE=written`,
before the commit, or `PAUSE=committed`, before the answer. It writes the file `paused` then. Stands
before the server's own command line.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from server_stub import __main__ as server
from server_stub.store import Store, group_rows


def pause() -> None:
    Path(os.environ["PAUSED"]).touch()
    time.sleep(600)


def written(*args: Any, add: Any = group_rows.add_group) -> None:
    add(*args)
    pause()


async def committed(*args: Any, add: Any = Store.add_group) -> None:
    await add(*args)
    pause()


if __name__ == "__main__":
    if os.environ["PAUSE"] == "written":
        group_rows.add_group = written  # type: ignore[assignment]
    else:
        Store.add_group = committed  # type: ignore[method-assign,assignment]
    del sys.argv[1:4]  # python -m server_stub
    sys.exit(server.main(sys.argv[1:]))
