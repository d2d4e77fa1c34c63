"""The text below a field is its description in documents and help texts, and an
import reads no source for it.
"""

import subprocess
import sys

from client_lib.spec.job import JobSpec
from client_lib.spec.request import SubmitRequest
from client_lib.spec.validation import Described, descriptions


class Size(Described):
    """Size of a thing."""

    width: int
    """Width
    in metres."""
    depth: int = 0
    note: str = ""
    """Free text."""


class Box(Size):
    height: int
    """Height in metres."""
    note: str = ""
    """What is in it."""

    def area(self) -> int:
        """The floor that it takes."""
        return self.width * self.depth


def test_the_text_below_a_field_describes_it_and_a_derived_model_may_say_it_differently() -> None:
    assert descriptions(Size) == {"width": "Width\nin metres.", "note": "Free text."}
    assert descriptions(Box) == {
        "width": "Width\nin metres.",
        "height": "Height in metres.",
        "note": "What is in it.",
    }


def test_a_model_without_its_source_has_no_descriptions() -> None:
    made: dict[str, type[Described]] = {}
    exec(
        "class Made(Described):\n    field: int\n    'A text.'",
        {"Described": Described, "__name__": __name__},
        made,
    )
    assert descriptions(made["Made"]) == {}
    assert "description" not in made["Made"].model_json_schema()["properties"]["field"]


def test_a_schema_has_the_descriptions_also_of_the_models_within() -> None:
    assert Box.model_json_schema()["properties"]["height"]["description"] == "Height in metres."
    within = SubmitRequest.model_json_schema()["$defs"]
    for name, text in descriptions(JobSpec).items():
        assert within["JobSpec"]["properties"][name]["description"] == text


def test_every_field_of_a_job_is_described() -> None:
    assert set(descriptions(JobSpec)) == set(JobSpec.model_fields)


def test_an_import_reads_no_source() -> None:
    """It takes as long as all else of the import together."""
    code = (
        "import inspect, linecache; inspect.getsource = inspect.findsource = linecache.getlines = "
        "None\nimport client_lib.spec.wire, client_lib.job"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
