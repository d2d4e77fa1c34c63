"""The runs of a group: every combination once, and each value in the arguments of its run."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from client_lib.errors import InvalidRequest
from client_lib.submit.sweep import members, rows, values

NAMES = st.from_regex(r"[a-z_][a-z0-9_-]{0,5}", fullmatch=True)
VALUES = st.lists(st.one_of(st.integers(), st.text("ab{}.", max_size=4)), min_size=1, max_size=4)


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), st.data())
def test_each_combination_is_one_run_with_its_values_in_its_arguments(
    each: dict[str, list[Any]], data: Any
) -> None:
    placed = data.draw(st.sets(st.sampled_from(sorted(each))))
    runs = members(["--fixed", *(f"x={{{name}}}" for name in sorted(placed))], each)
    count = 1
    for tried in each.values():
        count *= len(tried)
    assert len(runs) == count
    for run in runs:
        assert run.values.keys() == each.keys()
        expected = ["--fixed", *(f"x={run.values[name]}" for name in sorted(placed))]
        for name in each:
            expected += [] if name in placed else [f"--{name}", str(run.values[name])]
        assert run.args == expected
    assert all(run.values[name] in tried for run in runs for name, tried in each.items())


def test_the_last_name_varies_first() -> None:
    runs = members([], {"lr": ["0.1", "0.01"], "seed": range(2)})
    assert [run.args for run in runs] == [
        ["--lr", "0.1", "--seed", "0"],
        ["--lr", "0.1", "--seed", "1"],
        ["--lr", "0.01", "--seed", "0"],
        ["--lr", "0.01", "--seed", "1"],
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.1,0.01", ["0.1", "0.01"]),
        ("0..4", [0, 1, 2, 3, 4]),
        ("-1..0,7", [-1, 0, "7"]),
        ("3..3", [3]),
        ("a..b", ["a..b"]),
    ],
)
def test_values_are_texts_and_ranges_with_both_ends(text: str, found: list[Any]) -> None:
    assert values(text) == found


@pytest.mark.parametrize("text", ["", "1,,2", "4..0", "0..1000", "0..999999999999"])
def test_no_value_and_too_many_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        values(text)


@pytest.mark.parametrize(
    ("args", "each", "says"),
    [
        ([], {}, "make 0 runs"),
        ([], {"lr": []}, "lr has no values"),
        ([], {"lr": "0.1"}, "lr='0.1' is one text"),
        ([], {"a": range(40), "b": range(40)}, "make 1600 runs"),
        (["{lt}"], {"lr": [1]}, "{lt} in the arguments has no values; there are: lr"),
        ([], {"2x": [1]}, "'2x' can't be the name"),
    ],
)
def test_what_is_wrong_with_a_grid_is_named(
    args: list[str], each: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        members(args, each)
    assert says in refused.value.message


def test_doubled_braces_and_json_stay_text() -> None:
    (run,) = members(['{"a": {"b": 1}}', "{{lr}}", "{lr}"], {"lr": [3]})
    assert run.args == ['{"a": {"b": 1}}', "{lr}", "3"]


# --- given runs


def test_given_runs_are_members_as_they_are_given() -> None:
    runs = members(["--lr={lr}"], [{"lr": 0.1, "seed": 1}, {"seed": 2, "lr": 0.1}])
    assert [run.args for run in runs] == [["--lr=0.1", "--seed", "1"], ["--lr=0.1", "--seed", "2"]]
    assert runs[0].values == {"lr": 0.1, "seed": 1}


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ([], "make 0 runs"),
        ([{"seed": n} for n in range(1001)], "make 1001 runs"),
        ([{"lr": 1}, {"lr": 1, "seed": 2}], "run 2 has values for lr, seed, and run 1 for lr"),
        ([{"lr": 1}, {}], "run 2 has values for nothing, and run 1 for lr"),
        ([{"lr": 1}, {"lr": 2}, {"lr": 1}], "run 3 repeats run 1: {'lr': 1}"),
        ([{"learning rate": 1}], "'learning rate' can't be the name"),
    ],
)
def test_what_is_wrong_with_given_runs_is_named(runs: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        members([], runs)
    assert says in refused.value.message


def test_the_rows_of_a_file_are_runs() -> None:
    assert rows("lr,seed\r\n0.1, 1\r\n", "runs.csv") == [{"lr": "0.1", "seed": "1"}]
    assert rows('{"lr": 0.1}\n\n{"lr": 1e-3}', "runs.jsonl") == [{"lr": 0.1}, {"lr": 0.001}]
    assert rows("", "runs.csv") == rows("lr", "runs.csv") == rows("", "runs.jsonl") == []


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (
            "lr,seed\n1,2\n3\n",
            "runs.csv",
            "runs.csv, line 3 has 1 values; it needs one for each of: lr, seed",
        ),
        ("lr,seed\n1,2,3", "runs.csv", "line 2 has 3 values"),
        ("lr,seed\n1,\n3,4", "runs.csv", "line 2 has 1 values"),
        ("lr\n1\n\n3", "runs.csv", "line 3 has 0 values"),
        ("lr,lr\n1,2", "runs.csv", "two columns of runs.csv have the same name: lr, lr"),
        ('lr\n"1', "runs.csv", "runs.csv, line 2: unexpected end of data"),
        ('{"lr": 1}\n[1]', "runs.jsonl", "runs.jsonl, line 2 is no object"),
        ("lr", "runs.jsonl", "runs.jsonl, line 1 is no JSON"),
    ],
)
def test_what_is_wrong_with_a_file_is_named_with_its_line(text: str, name: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        rows(text, name)
    assert says in refused.value.message
