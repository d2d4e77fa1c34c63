"""Which value of a metric is the best."""

import pytest

from client_lib.spec.metric_names import Wanted, grows, wanted


@pytest.mark.parametrize(
    ("name", "larger"),
    [
        ("val_loss", False),
        ("eval_Accuracy", True),
        ("lr", None),
        ("dice_loss", False),
        ("accumulated_loss", False),
        ("reward_error", False),
        ("mse_reward", True),
    ],
)
def test_which_value_is_the_best_follows_from_the_name(name: str, larger: bool | None) -> None:
    assert grows(name) is larger


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("eval/acc", Wanted("eval/acc", True)),
        ("val_loss", Wanted("val_loss", False)),
        ("my_number", Wanted("my_number", False)),
        ("max:my_number", Wanted("my_number", True)),
        ("min:acc", Wanted("acc", False)),
        ("max:", Wanted("max:", False)),
        ("train:loss", Wanted("train:loss", False)),
    ],
)
def test_a_word_before_the_name_says_it(text: str, found: Wanted) -> None:
    assert wanted(text) == found
