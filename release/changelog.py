"""Join the files of `changelog.d`, one per change, in `CHANGELOG.md`.

python -m release.changelog          check the files; `make check` does
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "changelog.d"
FILE = "CHANGELOG.md"
README = "README.md"
KINDS = ("added", "changed", "deprecated", "removed", "fixed")
"""Kinds of changes, in the order of the sections of a release."""
PREPARED = " (in preparation)"
"""End of the heading of a section that was written by hand before its release."""

_LONGEST_LINE = 140
_HEADING = re.compile(r"^## .*$", re.MULTILINE)


class Fragment(NamedTuple):
    """A change."""

    name: str
    kind: str
    text: str

    @property
    def file(self) -> str:
        return f"{self.name}.{self.kind}.md"

    @property
    def item(self) -> str:
        """The text as an item of a Markdown list."""
        return "- " + "\n  ".join(self.text.splitlines())


def fragments(folder: Path) -> list[Fragment]:
    """The changes of a folder, by name. Files with another form of name are left out."""
    found = []
    for path in sorted(folder.glob("*.md")):
        name, _, kind = path.stem.rpartition(".")
        if path.name != README and kind in KINDS:
            found.append(Fragment(name, kind, path.read_text().strip()))
    return found


def problems(folder: Path) -> list[str]:
    """What is wrong with the files of a folder, a sentence each."""
    found = []
    for path in sorted(folder.iterdir()):
        name, _, kind = path.stem.rpartition(".")
        if path.name == README:
            continue
        if path.suffix != ".md" or not name or kind not in KINDS:
            found.append(
                f"{path.name} is not named NAME.KIND.md, with a kind of {', '.join(KINDS)}"
            )
        else:
            found += [f"{path.name} {problem}" for problem in _of_text(path.read_text())]
    return found


def _of_text(text: str) -> list[str]:
    lines = text.strip().splitlines()
    if not lines:
        return ["is empty"]
    found = []
    if lines[0].startswith(("-", "*", "#")):
        found.append("begins with a dash or a heading: it is one item, and gets its dash later")
    if any(not line.strip() for line in lines):
        found.append("has a blank line: a change is one item of a list")
    if any(len(line) > _LONGEST_LINE for line in lines):
        found.append(f"has a line of more than {_LONGEST_LINE} characters")
    return found


def joined(changelog: str, changes: Sequence[Fragment], version: str, date: str) -> str:
    """The changelog with the section of a release.

    A section in preparation is the newest one: it gets the version and the date, and the changes
    stand below its text. Otherwise a new section comes before the newest one.
    """
    heading = f"## {version} - {date}"
    items = _sections(changes)
    newest = _HEADING.search(changelog)
    before = changelog[: newest.start()] if newest else changelog.rstrip() + "\n\n"
    after = changelog[newest.start() :] if newest else ""
    if newest is None or not newest[0].endswith(PREPARED):
        return f"{before}{heading}\n\n{items}{after}"
    following = _HEADING.search(changelog, newest.end())
    end = following.start() if following else len(changelog)
    text = changelog[newest.end() : end].strip()
    return f"{before}{heading}\n\n{text}\n\n{items}{changelog[end:]}"


def _sections(changes: Sequence[Fragment]) -> str:
    """The changes under the headings of their kinds."""
    result = ""
    for kind in KINDS:
        items = [change.item for change in changes if change.kind == kind]
        if items:
            result += "\n".join([f"### {kind.capitalize()}", "", *items]) + "\n\n"
    return result


def main() -> int:
    """Print what is wrong with the files of this checkout; return the exit code."""
    found = problems(ROOT / FOLDER)
    for problem in found:
        print(f"{FOLDER}/{problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
