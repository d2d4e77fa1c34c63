"""Finds seeded faults in the curves of real trainings, by the rules of the field `alarm`.

    python benchmarks/alarms.py [--half first|second|both]

20 healthy trainings and 20 with one fault each: models of up to 200 000 parameters, trained on the
CPU for 600 steps. Every curve is watched by all rules, a look after each step; but only a training
that goes on learning is watched for a standstill, because the others do stand still in the end. The
first half of the curves was used to choose the bounds of `server_stub/curves/alarms.py`; the second
half was made afterwards. A fault counts as found if its rule becomes true within 10 steps of the
first step at which it can be: so many steps after the fault as the rule names. Whatever is found
before a fault, or in a healthy training, is false.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))
from client_lib.spec.alarm import parse
from server_stub.curves.alarms import Alarms
from server_stub.curves.points import Points

STEPS = 600
LATE = 10
"""Most steps between the first step at which a rule can be true, and the alarm."""
NAN = "nan for 1 step -> notify"
SPIKE = "loss spike -> notify"
HIGH = "loss > 20 for 50 steps -> notify"
RISES = "loss rises for 200 steps -> notify"
STILL = "loss stands still for 300 steps -> notify"
NORM = "grad_norm > 1000 -> notify"
RULES = (NAN, SPIKE, HIGH, RISES, STILL, NORM)
SPANS = {NAN: 1, SPIKE: 1, HIGH: 50, RISES: 200, STILL: 300, NORM: 1}

Batches = Iterator[tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]


class Task(NamedTuple):
    """A model with endless batches."""

    model: nn.Module
    batches: Batches
    loss: Loss


# --- tasks


def _classes(hidden: int, batch: int, depth: int = 2) -> Task:
    """Classes of points by a random network, with some labels wrong."""
    teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))
    layers: list[nn.Module] = [nn.Linear(32, hidden), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(hidden, hidden), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(hidden, 10))

    def batches() -> Batches:
        while True:
            points = torch.randn(batch, 32)
            yield points, (3 * teacher(points)).detach().argmax(1)

    return Task(model, batches(), functional.cross_entropy)


def _regression(batch: int, noise: float) -> Task:
    teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))

    def batches() -> Batches:
        while True:
            points = torch.randn(batch, 16)
            wanted = 5 * teacher(points).detach()
            yield points, wanted + noise * torch.randn_like(wanted)

    return Task(model, batches(), functional.mse_loss)


class _Recurrent(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(128, size)
        self.cells = nn.GRU(size, size, batch_first=True)
        self.head = nn.Linear(size, 128)

    def forward(self, letters: Tensor) -> Tensor:
        return self.head(self.cells(self.table(letters.long()))[0]).transpose(1, 2)


class _Attentive(nn.Module):
    def __init__(self, size: int, length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(128, size)
        self.places = nn.Parameter(0.02 * torch.randn(length, size))
        layer = nn.TransformerEncoderLayer(
            size, 4, 2 * size, 0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(size, 128)
        self.mask = nn.Transformer.generate_square_subsequent_mask(length)

    def forward(self, letters: Tensor) -> Tensor:
        hidden = self.table(letters.long()) + self.places
        return self.head(self.layers(hidden, mask=self.mask)).transpose(1, 2)


def _letters(model: nn.Module, batch: int, length: int = 32) -> Task:
    """The next letter of the documents of this repository."""
    files = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    text = "".join(file.read_text() for file in files)
    codes = torch.tensor([min(ord(letter), 127) for letter in text])

    def batches() -> Batches:
        while True:
            starts = torch.randint(0, len(codes) - length - 1, (batch,))
            rows = torch.stack([codes[start : start + length + 1] for start in starts])
            yield rows[:, :-1].float(), rows[:, 1:]

    return Task(model, batches(), functional.cross_entropy)


def _images(batch: int) -> Task:
    """Bars in noise, by their direction and place."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 9, 24)),
    )

    def batches() -> Batches:
        while True:
            kinds = torch.randint(0, 24, (batch,))
            pictures = torch.randn(batch, 1, 12, 12)
            for picture, kind in zip(pictures, kinds.tolist(), strict=True):
                rows = picture[0] if kind < 12 else picture[0].T
                rows[kind % 12] += 1.0
            yield pictures, kinds

    return Task(model, batches(), functional.cross_entropy)


def _autoencoder(batch: int) -> Task:
    mixing = torch.randn(8, 64)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8), nn.Linear(8, 64))

    def batches() -> Batches:
        while True:
            rows = torch.randn(batch, 8) @ mixing + 0.3 * torch.randn(batch, 64)
            yield rows, rows

    return Task(model, batches(), functional.mse_loss)


TASKS: dict[str, Callable[[], Task]] = {
    "classes": lambda: _classes(128, 64),
    "classes, batch 8": lambda: _classes(64, 8),
    "deep classes": lambda: _classes(64, 32, depth=6),
    "regression": lambda: _regression(32, 0.5),
    "noisy regression": lambda: _regression(16, 3.0),
    "letters, GRU": lambda: _letters(_Recurrent(64), 16),
    "letters, transformer": lambda: _letters(_Attentive(64, 32), 16),
    "images": lambda: _images(32),
    "autoencoder": lambda: _autoencoder(32),
}


# --- faults


class Fault(NamedTuple):
    """A fault, and the rule that finds it."""

    name: str
    rule: str
    at: int = 0
    """The step at which it begins."""


def _spoiled(fault: Fault, step: int, data: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The batch of a step."""
    since = step - fault.at
    if fault.name == "a record is NaN" and since == 0:
        data = data.clone()
        data[0] = math.nan
    if fault.name == "inputs without scale" and 0 <= since < 3:
        data = 60 * data
    if fault.name == "targets without scale" and 0 <= since < 2:
        wanted = 40 * wanted
    if fault.name == "labels in another order" and since >= 0:
        wanted = (wanted * 7 + 3) % (int(wanted.max()) + 1)
    if fault.name == "labels go wrong, ever more" and since >= 0:
        wrong = torch.rand(len(wanted)) < since / 250
        wanted = torch.where(wrong, wanted[torch.randperm(len(wanted))], wanted)
    if fault.name == "noise grows" and since >= 0:
        data = data + since / 60 * torch.randn_like(data)
    return data, wanted


def _act(fault: Fault, step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Change what happens from a step on."""
    if step != fault.at:
        return
    group = optimizer.param_groups[0]
    if fault.name == "rate times 3000":
        group["lr"] *= 3000
    if fault.name == "rate 0":
        group["lr"] = 0.0
    if fault.name == "gradients with the wrong sign":
        group["maximize"] = True
        group["lr"] *= 0.05
    if fault.name == "parameters frozen":
        for parameter in model.parameters():
            parameter.requires_grad_(False)
    if fault.name == "weights times 30":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(30)


# --- trainings


class Training(NamedTuple):
    task: str
    optimizer: str
    rate: float
    schedule: str
    """constant, warm-up, cosine or restarts."""
    seed: int
    fault: Fault | None = None


def train(training: Training) -> Iterator[tuple[float, float]]:
    """The loss and the norm of the gradient of each step."""
    torch.manual_seed(training.seed)
    model, batches, criterion = TASKS[training.task]()
    kind = getattr(torch.optim, training.optimizer)
    momentum = {"momentum": 0.9} if training.optimizer == "SGD" else {}
    optimizer = kind(model.parameters(), lr=training.rate, **momentum)
    fault = training.fault or Fault("", "", STEPS)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: _scale(training.schedule, step)
    )
    for step in range(STEPS):
        _act(fault, step, optimizer, model)
        data, wanted = _spoiled(fault, step, *next(batches))
        loss = criterion(model(data), wanted)
        norm = math.nan
        if loss.requires_grad:
            optimizer.zero_grad()
            loss.backward()
            norm = float(nn.utils.get_total_norm(p.grad for p in model.parameters()))
            optimizer.step()
        if step < fault.at:
            schedule.step()
        yield float(loss.detach()), norm


def _scale(schedule: str, step: int) -> float:
    if schedule == "warm-up":
        return min(1.0, (step + 1) / 50)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / (2 * STEPS)))
    if schedule == "restarts":
        return 0.2 + 0.4 * (1 + math.cos(math.pi * (step % 150) / 150))
    return 1.0


FIRST = [
    Training("classes", "SGD", 0.05, "constant", 1),
    Training("classes", "AdamW", 1e-3, "warm-up", 2),
    Training("classes, batch 8", "AdamW", 1e-3, "constant", 3),
    Training("regression", "Adam", 2e-3, "constant", 4),
    Training("regression", "SGD", 0.005, "cosine", 5),
    Training("letters, GRU", "AdamW", 1e-3, "constant", 6),
    Training("letters, GRU", "AdamW", 3e-4, "warm-up", 7),
    Training("letters, transformer", "AdamW", 5e-4, "warm-up", 8),
    Training("letters, transformer", "AdamW", 3e-4, "cosine", 9),
    Training("autoencoder", "Adam", 3e-4, "restarts", 10),
    Training("classes", "SGD", 0.05, "constant", 11, Fault("a record is NaN", NAN, 300)),
    Training("letters, GRU", "AdamW", 1e-3, "warm-up", 12, Fault("weights times 30", SPIKE, 250)),
    Training(
        "regression", "Adam", 2e-3, "constant", 13, Fault("targets without scale", SPIKE, 200)
    ),
    Training("classes", "AdamW", 1e-3, "constant", 14, Fault("inputs without scale", SPIKE, 350)),
    Training("autoencoder", "Adam", 1e-3, "constant", 15, Fault("inputs without scale", SPIKE, 90)),
    Training("letters, GRU", "AdamW", 1e-3, "constant", 16, Fault("rate 0", STILL, 250)),
    Training(
        *("letters, transformer", "AdamW", 5e-4, "cosine", 17),
        Fault("parameters frozen", STILL, 200),
    ),
    Training("regression", "SGD", 0.005, "constant", 18, Fault("rate times 3000", HIGH, 200)),
    Training(
        *("letters, transformer", "AdamW", 5e-4, "constant", 19),
        Fault("gradients with the wrong sign", RISES, 250),
    ),
    Training(
        "classes", "AdamW", 1e-3, "constant", 20, Fault("labels go wrong, ever more", RISES, 250)
    ),
]
SECOND = [
    Training("images", "AdamW", 1e-3, "constant", 21),
    Training("images", "SGD", 0.02, "warm-up", 22),
    Training("deep classes", "AdamW", 1e-3, "cosine", 23),
    Training("noisy regression", "Adam", 2e-3, "constant", 24),
    Training("classes, batch 8", "SGD", 0.02, "constant", 25),
    Training("classes", "RAdam", 2e-3, "restarts", 26),
    Training("regression", "NAdam", 1e-3, "warm-up", 27),
    Training("autoencoder", "RMSprop", 1e-3, "constant", 28),
    Training("letters, GRU", "RMSprop", 1e-3, "constant", 29),
    Training("letters, transformer", "Adam", 1e-3, "restarts", 30),
    Training("images", "AdamW", 1e-3, "constant", 31, Fault("a record is NaN", NAN, 150)),
    Training("deep classes", "AdamW", 1e-3, "warm-up", 32, Fault("weights times 30", SPIKE, 300)),
    Training(
        *("noisy regression", "Adam", 2e-3, "cosine", 33),
        Fault("targets without scale", SPIKE, 250),
    ),
    Training("images", "SGD", 0.05, "constant", 34, Fault("labels in another order", SPIKE, 400)),
    Training(
        "letters, GRU", "Adam", 2e-3, "constant", 35, Fault("labels in another order", SPIKE, 300)
    ),
    Training("letters, transformer", "Adam", 5e-4, "constant", 36, Fault("rate 0", STILL, 220)),
    Training(
        "letters, GRU", "RMSprop", 1e-3, "constant", 37, Fault("parameters frozen", STILL, 260)
    ),
    Training("autoencoder", "Adam", 1e-3, "constant", 38, Fault("noise grows", RISES, 250)),
    Training("regression", "Adam", 2e-3, "warm-up", 39, Fault("rate times 3000", HIGH, 300)),
    Training("deep classes", "SGD", 0.02, "constant", 40, Fault("weights times 30", NORM, 250)),
]


# --- the rules over the curves


class Result(NamedTuple):
    training: Training
    alarms: list[tuple[str, int]]
    """The rules that have become true, and the steps at which they did."""

    @property
    def delay(self) -> int | None:
        """Steps from the first at which the rule of the fault can be true to the alarm."""
        fault = self.training.fault
        if fault is None:
            return None
        first = fault.at + SPANS[fault.rule] - 1
        return next((step - first for rule, step in self.alarms if rule == fault.rule), None)

    @property
    def found(self) -> bool:
        return self.delay is not None and self.delay <= LATE

    @property
    def false(self) -> list[tuple[str, int]]:
        begin = self.training.fault.at if self.training.fault else STEPS
        return [alarm for alarm in self.alarms if alarm[1] < begin]


def watch(training: Training) -> Result:
    curves = {(0, name): Points("step", "stdout") for name in ("loss", "grad_norm")}
    goes_on = training.task.startswith("letters")
    alarms = Alarms([parse(rule) for rule in RULES if rule != STILL or goes_on])
    raised = []
    for step, values in enumerate(train(training)):
        for curve, value in zip(curves.values(), values, strict=True):
            curve.add(float(step), float(step), value)
        alarms.look(0, curves, {})
        raised += [(finding.rule.text, step) for finding in alarms.found()]
    return Result(training, raised)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=("first", "second", "both"), default="both")
    half = parser.parse_args().half
    torch.set_num_threads(1)
    trainings = {"first": FIRST, "second": SECOND, "both": FIRST + SECOND}[half]
    results = []
    print("| training | fault | rule | found after | false |\n|---|---|---|---|---|")
    for training in trainings:
        result = watch(training)
        results.append(result)
        fault = training.fault
        what = f"{fault.name}, step {fault.at} | `{fault.rule}`" if fault else "none |"
        found_after = "never" if result.delay is None else str(result.delay)
        after = found_after if fault else ""
        false = ", ".join(f"{rule} at {step}" for rule, step in result.false)
        who = f"{training.task}, {training.optimizer}, {training.schedule}"
        print(f"| {who} | {what} | {after} | {false} |", flush=True)
    faulty = [result for result in results if result.training.fault]
    healthy = [result for result in results if not result.training.fault]
    print(
        f"\n{sum(result.found for result in faulty)} of {len(faulty)} found within {LATE} steps; "
        f"{sum(bool(result.false) for result in healthy)} of {len(healthy)} healthy ones and "
        f"{sum(bool(result.false) for result in faulty)} of {len(faulty)} before their fault "
        "with an alarm"
    )


if __name__ == "__main__":
    main()
