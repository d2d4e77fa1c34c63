"""The report of a drill as data."""

import json
from math import inf, nan

from client_lib.drill.faults import Fault
from client_lib.drill.judgement import DrillVerdict, Result
from client_lib.drill.report import DrillReport, as_data
from client_lib.drill.values import Difference


def test_numbers_that_json_lacks_are_text() -> None:
    difference = Difference("loss", 0, 3.0, nan, 0.5, 0.0, inf)
    result = Result(Fault.KILL, DrillVerdict.DIFFERS, difference=difference)
    report = DrillReport("train.py", 1.0, True, [result])
    found = json.loads(json.dumps(as_data(report), allow_nan=False))
    assert found["faults"][0]["first_difference"] == {
        "metric": "loss",
        "rank": 0,
        "step": 3.0,
        "value": "nan",
        "expected": 0.5,
        "noise": 0.0,
        "largest": "inf",
    }
