"""Writes the tables of the documents that repeat the code: fields, settings, arguments, operations,
hints.

    python docs/tables.py        # `make docs` calls it

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; the rest is written by hand. A
test compares what is committed with what this makes. The docstring of Job has its parameters by the
same rule, behind `Parameters:`.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path

import platform_tables
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from client_lib.cli.app import COMMANDS
from client_lib.spec.job import JobSpec
from client_lib.spec.validation import descriptions
from server_stub.app import rest_api
from server_stub.failures.causes import CAUSES
from server_stub.http import metrics
from server_stub.http.users_file import OidcEntry, UserEntry
from server_stub.runtimes.kube import catalogue
from server_stub.settings import Settings
from server_stub.users import Team

DOCS = Path(__file__).resolve().parent
_NAMES = (
    "reference",
    "mlspace",
    "catalogue",
    "rest",
    "troubleshooting",
    "kubernetes",
    "SKILL",
    "architecture",
)
DOCUMENTS = (*(DOCS / f"{name}.md" for name in _NAMES), DOCS.parent / "client_lib" / "job.py")
_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PARAMETERS = re.compile(r"(\n    Parameters:\n).*?(    \"\"\"\n)", re.DOTALL)


def with_tables(text: str) -> str:
    """The document with every table made anew."""
    text = _BLOCK.sub(lambda block: f"{block[1]}{TABLES[block[2]]()}{block[3]}", text)
    return _PARAMETERS.sub(lambda block: f"{block[1]}{_parameters()}{block[2]}", text)


def _fields(model: type[BaseModel], name: Callable[[str], str]) -> str:
    texts = descriptions(model)
    rows = [
        (
            f"| `{name(key)}` | {type_of(field.annotation)} | {default_of(field)} | "
            f"{_cell(texts.get(key))} |"
        )
        for key, field in model.model_fields.items()
        if not field.exclude
    ]
    return "\n".join(["| name | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def _parameters() -> str:
    """The parameters of Job in its docstring, which editors and notebooks show."""
    lines = []
    for name, text in descriptions(JobSpec).items():
        words = f"{name}: {' '.join(text.split())}"
        lines += textwrap.wrap(
            words, 100, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False
        )
    return "\n".join([*lines, ""])


def _operations() -> str:
    """The operations of our REST API, in the order of its OpenAPI document."""
    rows = [
        (
            f"| `{method.upper()}` | `{path}` | "
            f"{_cell(operation.get('description', '').split('. ')[0])} |"
        )
        for path, operations in rest_api().openapi()["paths"].items()
        for method, operation in operations.items()
    ]
    return "\n".join(["| method | path | does |", "|---|---|---|", *rows, ""])


def _metrics() -> str:
    """The server's own metrics, as Prometheus names them."""
    described = metrics.registry(metrics.Traffic(), {}, 0, [], 0).collect()
    rows = [
        (
            f"| `{each.name}{'_total' if each.type == 'counter' else ''}` | {each.type} | "
            f"{_cell(each.documentation)} |"
        )
        for each in described
    ]
    return "\n".join(["| metric | type | meaning |", "|---|---|---|", *rows, ""])


def _hints() -> str:
    """The symptoms of known causes, and the hint that a report gives for each."""
    rows = [f"| {_cell(cause.symptom)} | {_cell(cause.hint)} |" for cause in CAUSES]
    return "\n".join(["| a rank | what to do |", "|---|---|", *rows, ""])


def _modules() -> str:
    """A row for each module, with the first sentence of its docstring or first comment."""
    root = DOCS.parent
    rows = ["| module | subject |", "|---|---|"]
    for package in ("client_lib", "server_stub"):
        for path in sorted((root / package).rglob("*.py")):
            is_of_whole_package = path.name.startswith("__") and path.parent.name == package
            if is_of_whole_package or "versions" in path.parts:  # migrations
                continue
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            name = path.relative_to(root).as_posix().removesuffix("__init__.py")
            rows.append(f"| `{name}` | {_cell(first_sentence(text))} |")
    for path in sorted((root / "server_stub/http/page/static").glob("*.js")):
        comment = re.match(r"(?:// ?.*\n)+", path.read_text())
        text = re.sub(r"^// ?", "", comment[0], flags=re.MULTILINE) if comment else ""
        rows.append(f"| `{path.relative_to(root).as_posix()}` | {_cell(first_sentence(text))} |")
    return "\n".join([*rows, ""])


def first_sentence(text: str) -> str:
    """The text up to its first full stop or empty line, without line breaks. Behind a colon stands
    what the module holds."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[a-z`)])\. (?=[A-Z`])|\.$", paragraph, maxsplit=1)[0]


def _commands() -> str:
    rows = [f"| `client-lib {name}` | {_cell(text)} |" for name, (_, text) in COMMANDS.items()]
    return "\n".join(["| command | does |", "|---|---|", *rows, ""])


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory in (list, dict):
        return "none"
    if field.default_factory is not None:
        return "computed"
    value = field.default
    if value is None or value == [] or value == {}:
        return "none"
    if isinstance(value, BaseModel) or (
        isinstance(value, list) and isinstance(value[0], BaseModel)
    ):
        return "see there"
    return f"`{value.value if isinstance(value, enum.Enum) else value}`"


def type_of(annotation: object) -> str:
    """As a reader says it: `int`, `list of str`, `int or default`."""
    if typing.get_origin(annotation) is typing.Annotated:
        return type_of(typing.get_args(annotation)[0])
    arguments = [a for a in typing.get_args(annotation) if a is not type(None)]
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " ".join(f"`{a}`" for a in arguments)
    if origin is list:
        return f"list of {type_of(arguments[0])}"
    if origin is dict:
        return "table"
    if arguments:
        return " or ".join(type_of(a) for a in arguments)
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return " ".join(f"`{member.value}`" for member in annotation)
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "table"
    return {"Path": "path"}.get(
        getattr(annotation, "__name__", ""), getattr(annotation, "__name__", str(annotation))
    )


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


TABLES: dict[str, Callable[[], str]] = {
    "job_fields": lambda: _fields(JobSpec, lambda key: key),
    "platform_parameters": platform_tables.parameters,
    "earlier_parameters": platform_tables.earlier_parameters,
    "server_settings": lambda: _fields(Settings, lambda key: f"CLIENT_LIB_SERVER_{key.upper()}"),
    "catalogue": lambda: _fields(catalogue.ClusterCatalogue, lambda key: key),
    "rest_operations": _operations,
    "hints": _hints,
    "metrics": _metrics,
    "commands": _commands,
    "modules": _modules,
}
_CATALOGUE: dict[str, type[BaseModel]] = {
    "instance_types": catalogue.InstanceType,
    "nodes": catalogue.Node,
    "images": catalogue.Images,
    "volumes": catalogue.Volume,
    "checkpoints": catalogue.Checkpoints,
    "user": catalogue.PodUser,
    "defaults": catalogue.Defaults,
    "gang": catalogue.Gang,
    "network": catalogue.Network,
    "peers": catalogue.Peer,
}
TABLES |= {f"catalogue_{name}": partial(_fields, model, str) for name, model in _CATALOGUE.items()}

_USERS_FILE: dict[str, type[BaseModel]] = {"users": UserEntry, "teams": Team, "oidc": OidcEntry}
TABLES |= {
    f"users_file_{name}": partial(_fields, model, str) for name, model in _USERS_FILE.items()
}

if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(with_tables(document.read_text()))
