"""The version of the project, in all places that repeat it."""

from pathlib import Path

import pytest

from client_lib import __version__
from release import versions
from release.versions import PLACES, Place, VersionError, found

ROOT = Path(__file__).resolve().parents[2]


def texts() -> dict[str, str]:
    return {place.file: (ROOT / place.file).read_text() for place in PLACES}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.file}, {place.pattern}")
def test_each_place_has_the_version_of_the_code(place: Place) -> None:
    assert set(found(place, texts()[place.file])) == {place.spelled(__version__)}


def test_the_sources_define_it() -> None:
    assert versions.read(ROOT) == __version__


def test_another_version_is_written_to_all_places_and_to_nothing_else() -> None:
    written = versions.replaced(texts(), "7.8.9")
    for place in PLACES:
        assert set(found(place, written[place.file])) == {"7.8.9"}
    assert versions.replaced(written, __version__) == texts()


def test_a_file_that_names_no_version_is_an_error() -> None:
    with pytest.raises(VersionError, match=r"README\.md names no version"):
        versions.replaced(texts() | {"README.md": "# client_lib\n"}, "7.8.9")


def test_the_version_after_a_release() -> None:
    assert versions.next_development("0.2.0") == "0.3.0.dev0"
    assert versions.next_development("1.9.3") == "1.10.0.dev0"


@pytest.mark.parametrize("version", ["", "0.2", "v0.2.0", "0.2.0.dev0", "0.2.0rc1", "0.2.0\n"])
def test_a_version_of_another_form_is_refused(version: str) -> None:
    with pytest.raises(VersionError, match="three numbers, such as"):
        versions.check_next(version, "0.2.0.dev0")


def test_a_version_that_is_older_or_released_is_refused() -> None:
    with pytest.raises(VersionError, match="older than the version of this checkout"):
        versions.check_next("0.1.9", "0.2.0.dev0")
    with pytest.raises(VersionError, match="is released"):
        versions.check_next("0.2.0", "0.2.0")


@pytest.mark.parametrize("version", ["0.2.0", "0.2.1", "1.0.0"])
def test_the_version_under_development_and_later_ones_may_be_released(version: str) -> None:
    versions.check_next(version, "0.2.0.dev0")
