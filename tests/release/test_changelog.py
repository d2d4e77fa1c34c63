"""The changelog, joined from one file per change."""

from pathlib import Path

import pytest

from release.changelog import FOLDER, ROOT, Fragment, fragments, joined, problems

CHANGELOG = "# Changelog\n\nAn introduction.\n\n## 0.1.0 - 2026-11-22\n\n- The first one.\n"


def test_the_files_of_this_checkout_are_well_formed() -> None:
    assert problems(ROOT / FOLDER) == []


def test_a_release_has_a_section_of_its_own_before_the_earlier_ones() -> None:
    changes = [
        Fragment("a", "fixed", "A server starts."),
        Fragment("b", "added", "`stacks --native` shows C.\nBefore: Python alone."),
        Fragment("c", "added", "A page."),
    ]
    assert joined(CHANGELOG, changes, "0.2.0", "2026-12-01") == (
        "# Changelog\n\nAn introduction.\n\n"
        "## 0.2.0 - 2026-12-01\n\n"
        "### Added\n\n"
        "- `stacks --native` shows C.\n  Before: Python alone.\n"
        "- A page.\n\n"
        "### Fixed\n\n"
        "- A server starts.\n\n"
        "## 0.1.0 - 2026-11-22\n\n- The first one.\n"
    )


def test_a_section_in_preparation_keeps_its_text() -> None:
    prepared = CHANGELOG.replace(
        "## 0.1.0", "## 0.2.0 (in preparation)\n\nTen highlights.\n\n## 0.1.0"
    )
    changes = [Fragment("a", "removed", "A setting.")]
    assert joined(prepared, changes, "0.2.0", "2026-12-01") == (
        "# Changelog\n\nAn introduction.\n\n"
        "## 0.2.0 - 2026-12-01\n\nTen highlights.\n\n"
        "### Removed\n\n- A setting.\n\n"
        "## 0.1.0 - 2026-11-22\n\n- The first one.\n"
    )


def test_a_release_without_a_change_and_a_first_one() -> None:
    assert "## 0.2.0 - 2026-12-01\n\n## 0.1.0" in joined(CHANGELOG, [], "0.2.0", "2026-12-01")
    changes = [Fragment("a", "added", "All.")]
    assert joined("# Changelog\n", changes, "0.1.0", "2026-11-22") == (
        "# Changelog\n\n## 0.1.0 - 2026-11-22\n\n### Added\n\n- All.\n\n"
    )


def test_the_files_of_a_folder_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# How to\n")
    (tmp_path / "stacks.native.added.md").write_text("Shows C.\n")
    (tmp_path / "page.fixed.md").write_text("\nA page.\n")
    assert problems(tmp_path) == []
    assert fragments(tmp_path) == [
        Fragment("page", "fixed", "A page."),
        Fragment("stacks.native", "added", "Shows C."),
    ]


@pytest.mark.parametrize(
    ("name", "text", "about"),
    [
        ("page.improved.md", "A page.", "is not named NAME.KIND.md"),
        ("page.md", "A page.", "is not named NAME.KIND.md"),
        ("added.md", "A page.", "is not named NAME.KIND.md"),
        ("page.added.txt", "A page.", "is not named NAME.KIND.md"),
        ("page.added.md", "\n", "is empty"),
        ("page.added.md", "- A page.", "begins with a dash"),
        ("page.added.md", "One.\n\nTwo.", "has a blank line"),
        ("page.added.md", "x" * 141, "more than 140 characters"),
    ],
)
def test_a_file_of_another_form_is_named(tmp_path: Path, name: str, text: str, about: str) -> None:
    (tmp_path / name).write_text(text)
    (found,) = problems(tmp_path)
    assert found.startswith(f"{name} ")
    assert about in found
