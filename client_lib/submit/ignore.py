"""The rules for the files of a folder that are code: `.gitignore` and `.clientlibignore` of each
directory, by git's rules, and names that never travel (version control, virtual environments,
caches, `.env`). Rules of a deeper file override rules of a file above, and within a directory
`.clientlibignore` overrides `.gitignore`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol import output_globs

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

FILES = (".gitignore", ".clientlibignore")
# see client_lib.submit.source: lies beside the script for a moment
PROOF_PREFIX = ".client-lib-proof-"
_NEVER = frozenset({".env", ".envrc", ".netrc", ".eggs"})


class Ignore:
    """The rules that hold in one directory: its own rules and the rules of the directories above
    it."""

    def __init__(self, rules: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        """`rules`: the innermost first, each with its directory relative to
        the root, as in `inside`.
        """
        self._rules = rules

    def inside(self, directory: Path, relative: str, files: Sequence[str] = FILES) -> Ignore:
        """The rules in `directory`, whose path from the root is `relative` (with a slash at its
        end; "" for the root). Raises InvalidRequest for an ignore file that can't be read or
        understood."""
        lines: list[str] = []
        for path in (directory / name for name in files):
            try:
                lines += path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise InvalidRequest(f"{path} can't be read: {error.strerror}") from error
        if not lines:
            return self
        from pathspec import GitIgnoreSpec  # 20 ms that a folder without ignore files does not cost

        try:
            spec = GitIgnoreSpec.from_lines(lines, backend="simple")
        except ValueError as error:
            raise InvalidRequest(
                f"an ignore file in {directory} can't be understood: {error}"
            ) from error
        return Ignore(((relative, spec), *self._rules))

    def matches(self, path: str) -> bool:
        """Return True if `path` (relative to the root; a directory with a
        slash at its end) is ignored.
        """
        found = (spec.check_file(path[len(base) :]).include for base, spec in self._rules)
        return next((include for include in found if include is not None), False)


def may_travel(root: Path) -> Callable[[str], bool]:
    """Tells of paths that git has listed in `root` whether they are code.
    `.gitignore` has been applied by git.
    """

    @cache
    def rules(folder: str) -> Ignore | None:  # None: nothing in it is code
        above, _, name = folder.rstrip("/").rpartition("/")
        outer = rules(f"{above}/" if above else "") if folder else Ignore()
        if outer is None or never(name) or outer.matches(folder):
            return None
        with suppress(InvalidRequest):
            return outer.inside(root / folder, folder, FILES[1:])
        return None

    def may(path: str) -> bool:
        above, _, name = path.rpartition("/")
        found = rules(f"{above}/" if above else "")
        return found is not None and not never(name) and not found.matches(path)

    return may


def never(name: str) -> bool:
    """Names that no ignore file can take back in."""
    return output_globs.never(name) or name in _NEVER or name.startswith((PROOF_PREFIX, ".env."))
