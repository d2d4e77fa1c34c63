"""How many examples of a property are tried: all in `make test-all`, a sample in `make test`."""

import os


def examples(count: int) -> int:
    """The number `count`, divided by the environment's FEWER_EXAMPLES; at least 2."""
    return max(2, count // int(os.environ.get("FEWER_EXAMPLES", "1")))
