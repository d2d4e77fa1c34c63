"""A real kernel that runs the cells of a notebook, and what a reader of the
notebook sees afterwards.
"""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


class Notebook:
    """Cells that were run, in a folder."""

    def __init__(self, folder: Path, *cells: str) -> None:
        sources = [nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in cells]
        self.node = nbformat.v4.new_notebook(cells=sources)
        self.client = Counting(
            self.node, timeout=300, resources={"metadata": {"path": str(folder)}}
        )

    def run(self) -> Notebook:
        self.client.execute()
        return self

    def outputs(self, cell: int) -> list[Any]:
        return list(self.node.cells[cell].outputs)

    def shown(self, cell: int) -> str:
        """As plain text, stderr among it."""
        return "\n".join(_text(output) for output in self.outputs(cell))

    def run_and_interrupt(self, cell: int, when: str) -> None:
        """All cells; this one is interrupted as soon as it shows `when`, and the others go on."""
        asyncio.run(self._run_and_interrupt(cell, when))

    async def _run_and_interrupt(self, interrupted: int, when: str) -> None:
        async with self.client.async_setup_kernel():
            for number, cell in enumerate(self.node.cells):
                allowed = number == interrupted
                cell.metadata["tags"] = ["raises-exception"] if allowed else []
                running = asyncio.create_task(self.client.async_execute_cell(cell, number))
                while allowed and not running.done() and when not in self.shown(number):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # nbclient has nothing to wait for
                if allowed:
                    assert not running.done(), self.shown(number)
                    assert self.client.km is not None
                    await self.client.km.interrupt_kernel()
                await running


class Counting(NotebookClient):
    """Counts what the kernel sends for the cells' outputs."""

    messages = 0

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        self.messages += msg["msg_type"] in (
            "stream",
            "display_data",
            "update_display_data",
            "execute_result",
        )
        return super().process_message(msg, cell, cell_index)


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return str(output.data["text/plain"])
