"""Write the commit into what hatchling builds, as the file `client_lib/COMMIT`."""

import os
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """A hook of hatchling, which finds it by `tool.hatch.build.hooks.custom` of pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file to a wheel and an sdist; an editable installation asks git when it runs."""
        sys.path.insert(0, self.root)
        try:
            from client_lib.version import FILE, commit
        finally:
            sys.path.remove(self.root)
        self._folder = tempfile.TemporaryDirectory()
        found = commit()
        if version == "editable" or found is None:
            return
        written = os.path.join(self._folder.name, FILE)
        with open(written, "w", encoding="ascii") as file:
            file.write(found + "\n")
        build_data["force_include"][written] = f"client_lib/{FILE}"

    def finalize(self, *_: object) -> None:
        """Remove the file that `initialize` wrote."""
        self._folder.cleanup()
