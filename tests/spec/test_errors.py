"""The error tree: one code per class, and a sentence about each."""

from client_lib import errors
from client_lib.errors import BY_CODE, ClientLibError


def _classes(root: type[ClientLibError]) -> list[type[ClientLibError]]:
    return [root, *(found for child in root.__subclasses__() for found in _classes(child))]


def test_every_class_has_a_code_of_its_own() -> None:
    assert sorted(BY_CODE) == sorted(
        cls.code for cls in _classes(ClientLibError) if cls.__module__ == errors.__name__
    )


def test_every_class_says_what_happened() -> None:
    assert [cls for cls in BY_CODE.values() if not (vars(cls).get("__doc__") or "").strip()] == []


def test_a_class_of_two_errors_has_code_and_status_of_one() -> None:
    class Plain(errors.ServerError):
        pass

    class Both(Plain, errors.Unavailable):
        pass

    assert (Both.code, Both.http_status) == ("unavailable", 503)


def test_an_error_reads_as_a_sentence_and_the_way_out() -> None:
    assert str(
        errors.NotFound("no job named x", hint="`client-lib list` shows the jobs")
    ).splitlines() == [
        "no job named x",
        "`client-lib list` shows the jobs",
    ]


def test_the_body_carries_a_hint_only_if_there_is_one() -> None:
    assert errors.Conflict("taken").body() == {"code": "conflict", "message": "taken"}
