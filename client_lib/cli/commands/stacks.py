"""`client-lib stacks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, CommandApp, JobOrNewest, TextOrJson
from client_lib.errors import NotFound

if TYPE_CHECKING:
    from client_lib.spec.stacks import JobStacks, RankStacks

app = CommandApp()


@app.command(
    epilog="""\b
Examples:
  client-lib stacks train-x7k2m                  what all ranks do, the same stacks as one line
  client-lib stacks train-x7k2m --rank 3         all threads of rank 3 and of its children
  client-lib stacks train-x7k2m -o json | jq '.ranks[].processes[0].state'
""",
)
def stacks(
    connection: Connection,
    name: JobOrNewest = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Show every thread of this rank.")] = None,
    output: TextOrJson = "text",
) -> None:
    """Show what a running job does: the functions in which its ranks are."""
    from client_lib.spec.stacks import details, groups

    job = connection.job(name)
    taken = connection.api.job_stacks(job["name"])
    if rank is not None:
        taken = taken.model_copy(update={"ranks": [_chosen(taken, rank)], "problems": []})
    if output == JSON:
        printer.data_json(taken.model_dump(mode="json"))
    elif rank is not None:
        printer.lines(details(taken.ranks[0]))
    else:
        printer.lines(groups(taken.ranks))
        for problem in taken.problems:
            printer.hint(problem)
        printer.hint(f"\n`client-lib stacks {job['name']} --rank N` shows every thread of a rank")


def _chosen(taken: JobStacks, number: int) -> RankStacks:
    found = next((rank for rank in taken.ranks if rank.rank == number), None)
    if found is None:
        known = ", ".join(str(rank.rank) for rank in taken.ranks) or "none"
        raise NotFound(
            f"job {taken.job} has sent nothing of rank {number}; ranks: {known}", hint="; ".join(taken.problems) or None
        )
    return found
