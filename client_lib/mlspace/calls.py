"""The functions of the platform's module: jobs by name, with the platform's texts, and the
catalogue of the server. Those beyond jobs are not supported; each error names an alternative.

`region` is accepted everywhere. A name is unique among one's jobs whatever the region, so only
`jobs` filters by it.
"""

from __future__ import annotations

import ast
import html
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from client_lib import __version__
from client_lib.client import get_job
from client_lib.errors import InvalidRequest, NotSupported
from client_lib.mlspace.constants import ClusterType
from client_lib.reports.table import aligned
from client_lib.spec.mlspace import REGIONS, iso, listed_status
from client_lib.transport.api import configured

if TYPE_CHECKING:
    import rich.table

Row = Mapping[str, Any]

# --- jobs


def jobs(region: str | None = None) -> None:
    """Print a line for each job, sorted by name:
    `2020-02-28T14:54:31Z : lm-mpi-job-... : Completed`.

    A job without a region is in every one. `client_lib.list_jobs()` is typed and lists the newest
    first.
    """
    found = [
        info
        for info in configured().list_jobs()
        if region is None or info.spec.region in (None, str(region))
    ]
    sys.stdout.writelines(
        f"{iso(info.created_at)} : {info.name} : {listed_status(info.state, info.reason)}\n"
        for info in sorted(found, key=lambda info: info.name)
    )


def logs(
    name: str, region: str | None = None, tail: int | None = None, verbose: bool | None = None
) -> None:
    """Print the job's lines and follow until it ends, as `Job.logs`. `tail` 0:
    all lines. Raises NotFound.
    """
    get_job(name).logs(tail=tail or None, verbose=verbose)


def kill(name: str, region: str | None = None) -> str:
    """Cancel the job: `Job "<name>" deleted`. Its logs stay. Raises NotFound."""
    return get_job(name).kill()


def get_job_status(name: str, region: str | None = None) -> str:
    """`Job status=Running`, as `Job.status`. Raises NotFound."""
    return get_job(name).status()


job_status = get_job_status


# --- the catalogue


def get_instance_types(
    cluster_type: ClusterType | str | None = None, regions: str | Sequence[str] | None = None
) -> Table:
    """A row for each region and instance type: region, instance_type, memory (GiB), cpu (cores),
    gpu.

    `regions`: one or several; None: all of the platform's. The types are the same in each: one
    server has one catalogue. `cluster_type` INF: no row, because there is no inference here.
    """
    is_inference = cluster_type is not None and ClusterType(cluster_type) is ClusterType.INF
    kinds = [] if is_inference else configured().instance_types()
    rows = [
        {
            "region": region,
            "instance_type": kind.name,
            "memory": kind.memory_gib,
            "cpu": kind.cpu,
            "gpu": kind.gpus,
        }
        for region in _regions(regions)
        for kind in kinds
    ]
    return Table(("region", "instance_type", "memory", "cpu", "gpu"), rows)


def get_available_resources_count(region: str | Sequence[str] | None = None) -> Table:
    """The number of workers of each instance type that fit right now: instance_type, available; `?`
    if it is not known.

    The capacity is the same in every region; with `region` a column names it.
    """
    kinds = configured().instance_types()
    columns = (
        ("instance_type", "available")
        if region is None
        else ("region", "instance_type", "available")
    )
    rows = [
        {"region": name, "instance_type": kind.name, "available": kind.available}
        for name in ([""] if region is None else _regions(region))
        for kind in kinds
    ]
    return Table(columns, rows)


def get_docker_images(cluster_type: ClusterType | str | None = None) -> list[str]:
    """The images of the server: always none, and a warning explains what runs instead."""
    warnings.warn(
        "this server lists no images: jobs on this machine run with your own interpreter, and "
        "base_image is only noted",
        stacklevel=2,
    )
    return []


def _regions(given: str | Sequence[str] | None) -> list[str]:
    if given is None:
        return list(REGIONS)
    return [str(given)] if isinstance(given, str) else [str(name) for name in given]


# --- not supported: classes raise in their constructor, so that no unusable object exists


class ImageBuildJob:
    """On the platform: builds an image."""

    def __init__(
        self,
        from_image: str | None = None,
        requirements_file: str | None = None,
        install_type: str = "pip",
        conda_env: str | None = None,
        poetrylock_file: str | None = None,
    ) -> None:
        """Raises NotSupported; the hint tells how to get the packages."""
        way_out = (
            f"pass Job(requirements={requirements_file or 'requirements.txt'!r}): they are "
            "installed before the script starts, beside those of the image"
        )
        if poetrylock_file:
            way_out = (
                f"install what {poetrylock_file} locks (`poetry install`) into the environment "
                "that submits"
            )
        raise NotSupported("ImageBuildJob: no image is built here", hint=way_out)


class S3CopyJob:
    """On the platform: copies to and from object storage."""

    def __init__(
        self, path: str | None = None, bucket: str | None = None, recursive: bool = False
    ) -> None:
        """Raises NotSupported."""
        raise NotSupported(
            "S3CopyJob: nothing is copied here",
            hint="run `aws s3 cp` or `rclone copy`, by itself or as Job(script='aws s3 cp ...', "
            "type='binary')",
        )


def copy_from_nfs(
    source_path: str | None = None,
    from_region: str | None = None,
    destination_path: str | None = None,
) -> NoReturn:
    """Raises NotSupported."""
    raise NotSupported(
        "copy_from_nfs: there are no regions to copy between",
        hint="`rsync` copies between machines",
    )


def get_transfer_data_logs(id: object = None) -> NoReturn:
    """Raises NotSupported."""
    raise NotSupported(
        "get_transfer_data_logs: nothing is transferred here",
        hint="`rsync -v` lists what it copies",
    )


def save_aws_credentials(
    ns: str | None = None, key: str | None = None, secret: str | None = None
) -> NoReturn:
    """Raises NotSupported. The arguments are neither kept nor shown."""
    del ns, key, secret  # a traceback may show local variables
    raise NotSupported(
        "save_aws_credentials: no credentials are kept here",
        hint="put them into the environment and name them: Job(secrets=['AWS_ACCESS_KEY_ID', "
        "'AWS_SECRET_ACCESS_KEY'])",
    )


def update() -> str:
    """Return the version and the command that installs another. Nothing is changed."""
    return f"client_lib {__version__}; `pip install --upgrade client-lib` installs the newest"


# --- tables, which print well and have the queries of a pandas DataFrame, without pandas


class Table:
    """Rows with the same columns. `rich.print(table)`, a notebook and
    `print(table)` all show it.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self.columns = list(columns)
        self._rows = [{name: row[name] for name in columns} for row in rows]

    def query(self, expr: str) -> Table:
        """The rows for which `expr` is true:
        `region == "SR003" and gpu >= 1`. Raises InvalidRequest.
        """
        holds = condition(expr)
        return Table(self.columns, [row for row in self._rows if holds(row)])

    def to_dict(self, orient: str = "records") -> list[dict[str, Any]]:
        """The rows as dicts. pandas' other orientations are not offered."""
        if orient != "records":
            raise ValueError(f"orient={orient!r}: only 'records' is offered")
        return [dict(row) for row in self._rows]

    def __getitem__(self, column: str) -> list[Any]:
        """One column. Raises KeyError."""
        if column not in self.columns:
            raise KeyError(f"there is no column {column!r}; there are: {', '.join(self.columns)}")
        return [row[column] for row in self._rows]

    def __iter__(self) -> Iterator[str]:
        """The names of the columns, as a DataFrame does."""
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self._rows)

    def __str__(self) -> str:
        return aligned([self.columns, *self._texts()])

    __repr__ = __str__

    def __rich__(self) -> rich.table.Table:
        from rich.table import Table as RichTable  # text and HTML need no rich

        shown = RichTable(*self.columns)
        for texts in self._texts():
            shown.add_row(*texts)
        return shown

    def _repr_html_(self) -> str:
        def row(tag: str, texts: Sequence[str]) -> str:
            return (
                "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"
            )

        body = "".join(row("td", texts) for texts in self._texts())
        return f"<table><thead>{row('th', self.columns)}</thead><tbody>{body}</tbody></table>"

    def _texts(self) -> list[list[str]]:
        return [[_text(name, value) for name, value in row.items()] for row in self._rows]


def _text(column: str, value: object) -> str:
    if value is None:
        return "?"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text}Gi" if column == "memory" else text


# --- conditions

_PARTS = (
    *(
        ast.Expression,
        ast.Name,
        ast.Load,
        ast.Constant,
        ast.List,
        ast.Tuple,
        ast.BoolOp,
        ast.And,
        ast.Or,
        ast.UnaryOp,
    ),
    *(
        ast.Not,
        ast.USub,
        ast.Compare,
        ast.Eq,
        ast.NotEq,
        ast.Lt,
        ast.LtE,
        ast.Gt,
        ast.GtE,
        ast.In,
        ast.NotIn,
    ),
)
# in Python they bind more tightly than a comparison
_SIGNS = {"&": " and ", "|": " or ", "~": " not "}


def condition(text: str) -> Callable[[Row], bool]:
    """A predicate for rows, written as for `DataFrame.query`: columns, text, numbers, comparisons
    (also chained, and `in` with a list), `and or not` and their signs `& | ~`. Nothing else is
    evaluated.

    Raises InvalidRequest: `text` is no such condition; when called, an unknown column or values
    that can't be compared.
    """
    words = re.sub(r"""'[^']*'|"[^"]*"|[&|~]""", lambda found: _SIGNS.get(found[0], found[0]), text)
    try:
        tree = ast.parse(words.strip(), mode="eval")
        for node in ast.walk(tree):
            for part in ast.iter_child_nodes(node):
                if not isinstance(part, _PARTS):
                    # an operator alone has no text
                    wrong = ast.unparse(part if isinstance(part, ast.expr) else node)
                    raise InvalidRequest(f"query {text!r}: {wrong!r} can't stand in a condition")
            if isinstance(node, ast.Compare):  # pandas' meaning of `region == ["SR003", "SR005"]`
                is_list = [isinstance(right, ast.List | ast.Tuple) for right in node.comparators]
                pairs = zip(node.ops, is_list, strict=True)
                node.ops = [
                    ast.In() if among and isinstance(kind, ast.Eq) else kind
                    for kind, among in pairs
                ]
        code = compile(tree, "query", "eval")
    except InvalidRequest:
        raise
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:  # the last two: it is nested too deeply
        raise InvalidRequest(
            f"query {text!r} is no condition", hint="write one such as 'gpu >= 1'"
        ) from error
    columns = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

    def holds(row: Row) -> bool:
        hint = f"columns: {', '.join(row)}"
        # also the few names that are there without builtins
        if unknown := sorted(columns - row.keys()):
            raise InvalidRequest(f"query {text!r}: there is no column {unknown[0]}", hint=hint)
        try:
            return bool(eval(code, {"__builtins__": {}}, dict(row)))
        except TypeError as error:
            raise InvalidRequest(f"query {text!r}: {error}", hint=hint) from error

    return holds
