"""A worker of an elastic job whose last pod, or the last start of this pod's container, has ended: it goes on there.

Only `agent` uses it. Standard library only, Python >= 3.8.
"""

import os
from typing import Callable, Tuple

from client_lib.worker.directory import Directory, renew
from client_lib.worker.pod.link import CONFLICT, Replaced
from client_lib.worker.pod.pauses import Pauses
from client_lib.worker.pod.server import Refused, Server, Unreachable


def go_on(
    directory: Directory, server: Server, check_stop: Callable[[], None], warn: Callable[[str], None]
) -> Tuple[int, int]:
    """Clear what the last launcher has left here, if there was one; gives back (offset, seq) of the record that the
    server wants next.

    Raises Replaced, OSError, and whatever `check_stop` does, which is called before each try.
    """
    if os.path.exists(directory.lock):
        renew(directory)
    pauses = Pauses()
    while True:
        check_stop()
        try:
            return server.log_end()
        except Refused as refused:
            if refused.status == CONFLICT:
                raise Replaced(str(refused)) from refused
            raise OSError("the server does not take its log: %s" % refused) from refused
        except Unreachable as error:
            warn("waits for the server: %s" % error)
            pauses.sleep()
