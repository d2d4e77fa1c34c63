"""The lines that tell metrics, as frameworks print them, and those that tell none."""

import math
import time

import pytest
from hypothesis import given, strategies as st

from client_lib.launcher_protocol.printed_metrics import LineReading, read

LINES = {
    # transformers: before 5 numbers, since 5 strings
    "{'loss': 0.5123, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}": LineReading(
        {"loss": 0.5123, "grad_norm": 1.2, "learning_rate": 5e-05}, epoch=0.1
    ),
    "{'loss': '0.5123', 'epoch': '0.1'}": LineReading({"loss": 0.5123}, epoch=0.1),
    '{"step": 10, "loss": 0.25, "time": 17.5}': LineReading({"loss": 0.25}, 10),
    # TRL and Trainer: a dict's name tells by its last word what it counts
    "{'loss': '0.5123', 'num_tokens': '512', 'epoch': '0.1'}": LineReading(
        {"loss": 0.5123, "num_tokens": 512}, epoch=0.1
    ),
    "{'eval_loss': '0.7', 'eval_runtime': '0.04', 'epoch': '1'}": LineReading(
        {"eval_loss": 0.7, "eval_runtime": 0.04}, epoch=1
    ),
    (
        '{"step": 10, "loss": 0.25, "worker_id": 2, "gpu_mem": 5, "batch_size": 8, "runtime": 3}'
    ): LineReading({"loss": 0.25}, 10),
    'INFO {"step": 10, "metrics": {"loss": 0.25}}': LineReading({"loss": 0.25}, 10),
    # examples of PyTorch
    "Train Epoch: 1 [640/60000 (1%)]\tLoss: 1.700": LineReading({"loss": 1.7}, 640, 60000, 1),
    "Test set: Average loss: 0.0265, Accuracy: 9921/10000 (99%)": LineReading(
        {"average_loss": 0.0265}
    ),
    "| epoch   1 |   200/ 2928 batches | lr 20.00 | ms/batch 10.1 | loss  7.62 |": LineReading(
        {"lr": 20, "loss": 7.62}, epoch=1
    ),
    "Epoch [3/10], Step [100/600], Loss: 0.123": LineReading({"loss": 0.123}, 100, 600, 3, 10),
    # nanoGPT
    "iter 100: loss 2.345, time 120.10ms, mfu 1.2%": LineReading({"loss": 2.345}, 100),
    "step 250: train loss 1.9000, val loss 2.0000": LineReading(
        {"train_loss": 1.9, "val_loss": 2.0}, 250
    ),
    # Keras, tqdm, Lightning
    "45/100 [====>....] - ETA: 3s - loss: 0.1 - acc: 0.9": LineReading(
        {"loss": 0.1, "acc": 0.9}, 45, 100
    ),
    " 45%|████▌     | 45/100 [00:12<00:15,  3.61it/s, loss=0.231]": LineReading(
        {"loss": 0.231}, 45, 100, bar=""
    ),
    "45it [00:12,  3.61it/s, loss=0.231]": LineReading({"loss": 0.231}, 45, bar=""),
    (
        "Epoch 2:  45%|████▌     | 45/100 [00:12<00:15,  3.61it/s, v_num=0, train_loss=0.231]"
    ): LineReading({"train_loss": 0.231}, 45, 100, 2, bar="Epoch"),
    # by hand
    "epoch 3 step 40/200 loss=0.12 acc: 97.1%": LineReading(
        {"loss": 0.12, "acc": 97.1}, 40, 200, 3
    ),
    "\x1b[32mINFO\x1b[0m:root:step=3 val/loss=0.2 lr=1e-3": LineReading(
        {"val/loss": 0.2, "lr": 1e-3}, 3
    ),
    "step 3 tokens_seen=4096 temperature: 0.7": LineReading(
        {"tokens_seen": 4096, "temperature": 0.7}, 3
    ),
    "loss: 0.5.": LineReading({"loss": 0.5}),
    "[3/8] done": LineReading({}, 3, 8),
}

SILENT = [
    '  File "/usr/lib/train.py", line 3, in loss',
    "RuntimeError: loss 0.5 at step 3",
    "UserWarning: step 3 lr=0.1",
    "torch 2.15.0, cuda: 12.4, python:3.11",
    "listening on 127.0.0.1: 8080, port=29500 rank=3",
    "took 0.52 s, time: 0.5, elapsed=3.1 ms",
    "step 3: 0.52 s, size=4 bytes, copied: 4.5 MB",
    "model.bin: 45%|███ | 45/100 [00:12<00:15, 3.6MB/s, loss=3]",
    "temperature: 0.7, top_k: 50",
    "saved /out/loss=0.5/model.pt, loss/0.5",
    "2026/11/23 10:58:55 started",
    "{'host': 'a', 'port': 8080}",
    "lossless 3",
    "loss",
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_a_training_is_read(line: str) -> None:
    assert read(line) == LINES[line]


@pytest.mark.parametrize("line", SILENT)
def test_other_lines_tell_nothing(line: str) -> None:
    assert read(line) is None


@pytest.mark.parametrize(
    "line",
    ["loss: nan", "{'loss': nan, 'epoch': 1}", "{'loss': 'nan', 'epoch': 1}", '{"loss": NaN}'],
)
def test_nan_is_a_value(line: str) -> None:
    reading = read(line)
    assert reading is not None
    assert math.isnan(reading.values["loss"])


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    read(text)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(0, 10**9),
    st.sampled_from(
        [
            "step {step} loss={loss!r}",
            "{{'step': {step}, 'loss': {loss!r}}}",
            "iter {step}: train_acc 1 loss {loss!r}, x",
        ]
    ),
)
def test_every_digit_that_was_printed_is_kept(loss: float, step: int, form: str) -> None:
    reading = read(form.format(step=step, loss=loss))
    assert reading is not None
    assert (reading.step, reading.values["loss"]) == (step, loss)


@pytest.mark.parametrize("line", ["x" * 10 + " %|" + " " * 3980, "1%|loss|" + " " * 3980])
def test_a_long_line_is_read_in_linear_time(line: str) -> None:
    begin = time.thread_time()
    for _ in range(10):
        read(line)
    assert time.thread_time() - begin < 0.2  # of the CPU; quadratic: 0.45 s
