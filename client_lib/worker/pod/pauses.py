"""How long to wait before a call is made again: 0.1, 0.2, 0.4 ... 3 s, each up to a fifth shorter by chance, so that
the pods of a job don't all come at once. Standard library only, Python >= 3.8.
"""

import random
import time

FIRST_S, LONGEST_S = 0.1, 3.0


class Pauses:
    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self._next_s = FIRST_S

    def reset(self) -> None:
        self._next_s = FIRST_S

    def sleep(self) -> None:
        time.sleep(self._next_s * random.uniform(0.8, 1.0))
        self._next_s = min(2 * self._next_s, self._longest_s)
