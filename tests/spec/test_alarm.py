"""The grammar of the rules of `alarm`."""

import pytest
from hypothesis import given, strategies as st

from client_lib.spec.alarm import (
    ONCE,
    THRICE,
    Beyond,
    Condition,
    Idle,
    NotFinite,
    Rises,
    Span,
    Spike,
    StandsStill,
    action_of,
    parse,
)

RULES: list[tuple[str, Condition, str]] = [
    ("nan -> stop", NotFinite("", THRICE), "stop"),
    ("nan->stop", NotFinite("", THRICE), "stop"),
    ("nan for 10 steps -> retry", NotFinite("", Span(10, "steps")), "retry"),
    ("val/loss nan -> notify", NotFinite("val/loss", THRICE), "notify"),
    ("loss > 10 -> stop", Beyond("loss", ">", 10.0, ONCE), "stop"),
    ("loss>10->stop", Beyond("loss", ">", 10.0, ONCE), "stop"),
    ("loss > 10 for 50 steps -> retry", Beyond("loss", ">", 10.0, Span(50, "steps")), "retry"),
    ("acc.top-1 <= -.5e-3 for 2h->stop", Beyond("acc.top-1", "<=", -5e-4, Span(7200, "s")), "stop"),
    ("a@b >= 1 for 1 step -> stop", Beyond("a@b", ">=", 1.0, Span(1, "steps")), "stop"),
    ("optim/grad_norm spike -> notify", Spike("optim/grad_norm"), "notify"),
    ("loss rises for 200 steps -> notify", Rises("loss", Span(200, "steps")), "notify"),
    ("loss stands still for 10 min -> notify", StandsStill("loss", Span(600, "s")), "notify"),
    ("idle for 30 min -> notify", Idle(Span(1800, "s")), "notify"),
    ("idle < 3 for 30 s -> notify", Beyond("idle", "<", 3.0, Span(30, "s")), "notify"),
    ("NaN -> Stop", NotFinite("", THRICE), "stop"),
]


@pytest.mark.parametrize(("text", "condition", "action"), RULES)
def test_a_rule_is_read(text: str, condition: Condition, action: str) -> None:
    rule = parse(text)
    assert (rule.condition, rule.action) == (condition, action)
    assert action_of(text) == action


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "column 1: the rule ends where the name of a metric, `nan` or `idle` is missing"),
        ("nan", "column 4: the rule ends where `->` or `for` is missing"),
        ("loss > ten -> stop", "column 8: 'ten' stands behind 'loss >' in place of a number"),
        ("loss spkie -> stop", "column 6: 'spkie' stands behind 'loss'"),
        ("loss spkie -> stop", "did you mean `spike`?"),
        ("loss > 10 -> stopp", "column 14: 'stopp' stands behind 'loss > 10 ->'"),
        ("loss > 10 -> stopp", "`notify`, `stop` or `retry`; did you mean `stop`?"),
        ("loss > 10 for 50 -> stop", "column 18: '->' stands behind 'loss > 10 for 50'"),
        ("loss > 10 for 0 steps -> stop", "column 15: '0' stands behind 'loss > 10 for'"),
        ("loss > 10 for 1.5 steps -> stop", "a span from 1 to 1000000000 steps"),
        ("loss > 10 for 800 h -> stop", "a span from 1 s to 30 days (720 h)"),
        ("loss > 1e999 -> stop", "column 8: '1e999' stands behind 'loss >'"),
        ("loss > nan -> stop", "column 8: 'nan' stands behind 'loss >'"),
        ("loss rises -> notify", "column 12: '->' stands behind 'loss rises' in place of `for`"),
        ("loss rises for 5 steps -> notify", "a span from 20 to 1000000000 steps"),
        ("loss stands for 5 min -> stop", "column 13: 'for' stands behind 'loss stands'"),
        ("idle -> stop", "column 6: '->' stands behind 'idle' in place of `for`"),
        ("idle for 5 steps -> stop", "column 12: 'steps' stands behind 'idle for 5'"),
        ("loss spike for 5 steps -> stop", "column 12: 'for' stands behind 'loss spike'"),
        ("nan -> stop now", "column 13: 'now' stands behind 'nan -> stop' in place of the end"),
        ("3 > loss -> stop", "column 1: '3' stands in place of the name of a metric"),
        ("nan → stop", "column 5: '→' stands behind 'nan'"),
        ("x" * 201, "has 201 characters; a rule has at most 200"),
    ],
)
def test_an_error_names_the_column_and_the_way_out(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"column|characters") as refused:
        parse(text)
    assert says in str(refused.value)


def test_a_word_of_two_letters_away_is_offered_only_where_it_is_near() -> None:
    with pytest.raises(ValueError, match="as in `loss > 10 for 50 steps -> notify`"):
        parse("loss is nan -> stop")


WORDS = "loss nan idle > < >= -> for 10 1e3 steps min h s spike rises stands still stop notify - ."


@given(st.lists(st.sampled_from(WORDS.split()), max_size=9).map(" ".join) | st.text(max_size=200))
def test_any_text_is_read_or_refused_with_its_column(text: str) -> None:
    try:
        rule = parse(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"^column "):
            parse(text)
    else:
        assert parse(rule.text) == rule


def test_the_longest_rules_are_read_in_no_time() -> None:
    for text in ("a" * 200, "- " * 100, "1e" * 100, "1" * 200, "a-" * 100, "<" * 200):
        with pytest.raises(ValueError, match="column"):
            parse(text)
