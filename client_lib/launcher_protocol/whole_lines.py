"""Joins records to whole lines: pieces of a line that goes on become one line, and of a run of
progress the last state remains, when a line of its source follows.

For readers of whole lines: pipes, JSON, `Job.log_lines`, files that a page offers. A terminal shows
pieces and progress at once instead.
"""

from typing import AnyStr, Dict, Generic, Hashable, List, Tuple, TypeVar

from client_lib.launcher_protocol.record import GOES_ON, LINE, PROGRESS

S = TypeVar("S", bound=Hashable)
F = TypeVar("F")


class WholeLines(Generic[S, F, AnyStr]):
    """The lines of any number of sources (a rank and a stream). `most`: bound of the characters or
    bytes that are held for all sources together. What does not fit is given out as a piece, whose
    kind is GOES_ON."""

    def __init__(self, most: int) -> None:
        self._room = most
        self._begun: Dict[S, Tuple[F, List[AnyStr]]] = {}
        self._progress: Dict[S, Tuple[F, AnyStr]] = {}

    @property
    def holds(self) -> bool:
        """Any source has a line that goes on, or progress."""
        return bool(self._begun or self._progress)

    def add(self, source: S, facts: F, kind: str, text: AnyStr) -> List[Tuple[F, str, AnyStr]]:
        """The lines that this record completes: facts, kind and text of each. The facts of a line
        are those of its first record."""
        begun = self._begun.get(source)
        if kind == GOES_ON and len(text) <= self._room:
            self._room -= len(text)
            self._begun.setdefault(source, (facts, []))[1].append(text)
            return []
        if begun is not None:
            facts = begun[0]
            text = self._joined(source) + text
        completed = self._last_progress(source)
        if kind != PROGRESS:
            completed.append((facts, kind, text))
            return completed
        if len(text) > self._room:
            return [(facts, kind, text)]
        self._room -= len(text)
        self._progress[source] = (facts, text)
        return []

    def close(self) -> List[Tuple[F, str, AnyStr]]:
        """Everything that is held: of each source its last progress and its line without an end."""
        out: List[Tuple[F, str, AnyStr]] = []
        for source in dict.fromkeys([*self._progress, *self._begun]):
            out += self._last_progress(source)
            if source in self._begun:
                out.append((self._begun[source][0], LINE, self._joined(source)))
        return out

    def _joined(self, source: S) -> AnyStr:
        _, pieces = self._begun.pop(source)
        text = pieces[0][:0].join(pieces)
        self._room += len(text)
        return text

    def _last_progress(self, source: S) -> List[Tuple[F, str, AnyStr]]:
        if source not in self._progress:
            return []
        facts, text = self._progress.pop(source)
        self._room += len(text)
        return [(facts, PROGRESS, text)]
