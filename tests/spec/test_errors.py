"""The error tree: one code per class, and the drawing in the module's docstring is the tree."""

import re

from client_lib import errors
from client_lib.errors import BY_CODE, ClientLibError


def _classes(root: type[ClientLibError]) -> list[type[ClientLibError]]:
    return [root, *(found for child in root.__subclasses__() for found in _classes(child))]


def test_every_class_has_a_code_of_its_own() -> None:
    assert sorted(BY_CODE) == sorted(cls.code for cls in _classes(ClientLibError) if cls.__module__ == errors.__name__)


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = re.findall(r"^[ │├└─]+([A-Z]\w+) +([a-z_]+)", errors.__doc__ or "", re.MULTILINE)
    assert drawn == [(cls.__name__, cls.code) for cls in _classes(ClientLibError) if cls.__module__ == errors.__name__]


def test_an_error_reads_as_a_sentence_that_begins_with_error() -> None:
    assert str(errors.NotFound("no job named x", hint="`client-lib list` shows the jobs")).splitlines() == [
        "Error: no job named x",
        "`client-lib list` shows the jobs",
    ]


def test_the_body_carries_a_hint_only_if_there_is_one() -> None:
    assert errors.Conflict("taken").body() == {"code": "conflict", "message": "taken"}
