"""The steps of real optimizers, as the hooks of torch show them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib.worker.rank_runner import norms, optimizer_steps
from client_lib.worker.rank_runner.optimizer_steps import STEPS_KIND, OptimizerSteps, pause_s
from server_stub.curves.tracker import OBSERVED
from tests.kit.bounds import Bounds
from tests.worker.rank_runner.joined import RUNNER


class Lines:
    """The pipe for metrics, as the launcher has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def read(self) -> list[list[Any]]:
        try:
            self._rest += os.read(self._fd, 2**16)
        except BlockingIOError:
            pass
        *whole, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in whole]

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Lines]:
    made = Lines(tmp_path / "metrics")
    yield made
    made.close()


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


Sent = Callable[[], list[dict[str, float]]]


@pytest.fixture
def sent(
    torch: Any, lines: Lines, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sent]:
    """Observes the optimizers of this process, each iteration with a line; returns the values."""
    monkeypatch.setenv("CLIENT_LIB_METRICS", str(lines.path))
    monkeypatch.setenv("RANK", "3")
    bounds(optimizer_steps, _FIRST_PAUSE_S=0.0, _OLDER=1e9)
    bounds(norms, NORMS_SHARE=1e9)
    torch.manual_seed(0)
    steps = OptimizerSteps(torch)
    hooks = sys.modules["torch.optim.optimizer"]
    handles = [
        hooks.register_optimizer_step_pre_hook(steps.before_step),
        hooks.register_optimizer_step_post_hook(steps.after_step),
    ]

    def read() -> list[dict[str, float]]:
        steps.send_last()
        found = lines.read()
        assert all(line[:2] == [3, STEPS_KIND] for line in found)
        assert all(line[3].get("train/step", line[2]) == line[2] for line in found)
        return [line[3] for line in found]

    yield read
    for handle in handles:
        handle.remove()


def trained(torch: Any, optimizer: Any, model: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def steps_of(found: list[dict[str, float]]) -> list[float]:
    return [values["train/step"] for values in found if "train/step" in values]


def run_ranked(script: Path, lines: Lines) -> subprocess.CompletedProcess[str]:
    """Run a script under the rank runner, to its end."""
    return subprocess.run(
        [sys.executable, str(RUNNER), str(script)],
        env={**os.environ, "CLIENT_LIB_METRICS": str(lines.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )


def closure_of(torch: Any, model: Any, optimizer: Any) -> Callable[[], Any]:
    """A closure that computes the loss and the gradients of one batch, the same in each call."""
    data = torch.randn(8, 4)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        return loss

    return closure


def test_both_sides_use_one_name() -> None:
    assert STEPS_KIND == OBSERVED


def test_lines_become_rarer() -> None:
    assert [pause_s(age) for age in (0.0, 12.0, 60.0, 1e6)] == [0.2, 0.2, 1.0, 16.0]


def test_a_loop_shows_steps_rates_and_norms(torch: Any, sent: Sent) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.nn.utils.get_total_norm(list(model.parameters())).item()
    trained(torch, optimizer, model, 5)
    found = sent()
    assert steps_of(found) == [1, 2, 3, 4, 5]
    assert {values["optim/lr"] for values in found} == {0.1}
    assert "train/step_time" not in found[0]
    assert all(values["train/step_time"] > 0 for values in found[1:])
    assert found[0]["optim/param_norm"] == pytest.approx(before)
    gradients = [each.grad for each in model.parameters()]
    assert found[-1]["optim/grad_norm"] == pytest.approx(
        torch.nn.utils.get_total_norm(gradients).item()
    )


def test_accumulated_gradients_make_one_step(torch: Any, sent: Sent) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for micro in range(8):
        model(torch.randn(8, 4)).sum().backward()
        if micro % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    assert steps_of(sent()) == [1, 2]


def test_two_optimizers_step_in_one_iteration(torch: Any, sent: Sent) -> None:
    networks = [torch.nn.Linear(4, 4) for _ in range(2)]
    optimizers = [
        torch.optim.Adam(network.parameters(), lr=lr)
        for network, lr in zip(networks, (0.1, 0.2), strict=True)
    ]
    for _ in range(4):
        for network, optimizer in zip(networks, optimizers, strict=True):
            trained(torch, optimizer, network, 1)
    found = sent()
    assert steps_of(found) == [1, 2, 3, 4]
    assert [found[-1]["optim/lr"], found[-1]["optim/lr_1"]] == [0.1, 0.2]
    both = torch.nn.utils.get_total_norm(
        [each.grad for network in networks for each in network.parameters()]
    )
    assert found[-1]["optim/grad_norm"] == pytest.approx(both.item())


def test_optimizers_of_the_backward_pass_are_one(torch: Any, sent: Sent) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in optimizers:
        each.register_post_accumulate_grad_hook(step)
    for _ in range(5):
        model(torch.randn(2, 4)).sum().backward()
    assert steps_of(sent()) == [1, 2, 3, 4, 5]


def test_a_closure_is_one_step_whose_gradients_it_makes(torch: Any, sent: Sent) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    closure = closure_of(torch, model, optimizer)
    for _ in range(3):
        optimizer.step(closure)
    found = sent()
    assert steps_of(found) == [1, 2, 3]
    assert all(values["optim/grad_norm"] > 0 for values in found)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_is_not_counted(torch: Any, sent: Sent, fused: bool) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), fused=fused, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    data = torch.randn(8, 4)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        scaler.scale(loss * float("inf") if step == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    found = sent()
    assert steps_of(found) == [1, 2, 3]
    model(data).square().mean().backward()
    assert found[0]["optim/grad_norm"] < 100, "it has no scale"


def test_an_optimizer_inside_another_one_is_a_part_of_it(
    torch: Any, sent: Sent, tmp_path: Path
) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        model = torch.nn.Linear(4, 2)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1
        )
        trained(torch, optimizer, model, 3)
    finally:
        torch.distributed.destroy_process_group()
    assert steps_of(sent()) == [1, 2, 3]


@pytest.mark.parametrize("in_thread", [False, True])
def test_steps_after_one_that_raises_are_counted(torch: Any, sent: Sent, in_thread: bool) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise MemoryError("out of memory")

    model = torch.nn.Linear(4, 2)
    kept = Failing(model.parameters(), lr=0.1)  # its identity is not used again

    def fail() -> None:
        with pytest.raises(MemoryError):
            trained(torch, kept, model, 1)

    smaller = torch.optim.SGD(model.parameters(), lr=0.2)
    trained(torch, smaller, model, 1)
    if in_thread:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    else:
        fail()
    trained(torch, smaller, model, 2)
    found = sent()
    assert steps_of(found) == [1, 2, 3]
    assert {values["optim/lr"] for values in found} == {0.2}


def test_a_resumed_optimizer_goes_on_with_its_steps(torch: Any, sent: Sent) -> None:
    model = torch.nn.Linear(4, 2)
    first = torch.optim.Adam(model.parameters())
    trained(torch, first, model, 7)
    sent()
    again = torch.optim.Adam(model.parameters())
    again.load_state_dict(first.state_dict())
    trained(torch, again, model, 1)
    resumed = OptimizerSteps(torch)  # as a new process, whose first step was this one
    resumed.before_step(again, (again,), {})
    resumed.after_step(again, (again,), {})
    assert steps_of(sent()) == [8, 8]


@pytest.mark.parametrize("mark", ["ds_id", "_fsdp_flattened"])
def test_a_part_of_the_parameters_has_no_norm(torch: Any, sent: Sent, mark: str) -> None:
    model = torch.nn.Linear(4, 2)
    setattr(model.weight, mark, 1)
    trained(torch, torch.optim.SGD(model.parameters(), lr=0.1), model, 2)
    found = sent()
    assert steps_of(found) == [1, 2]
    assert not any("norm" in name for values in found for name in values)


def test_optimizers_on_two_devices_have_no_norm(
    torch: Any, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "meta" is the one other device that each machine has
    monkeypatch.setattr(norms, "_DEVICES", ("cpu", "meta"))
    models = [torch.nn.Linear(4, 2, device=device) for device in ("cpu", "meta")]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(torch.randn(8, 4, device=model.weight.device)).sum().backward()
            optimizer.step()
    found = sent()
    assert steps_of(found) == [1, 2, 3]
    # the first line is sent before it is known that there is a second optimizer
    assert not any("norm" in name for values in found[1:] for name in values)


def test_norms_that_are_not_shown_cost_as_much_as_others(torch: Any, bounds: Bounds) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    table = torch.nn.Parameter(torch.ones(4))
    table.grad = torch.ones(4).to_sparse()
    observed = norms.Norms(torch)
    bounds(norms, NORMS_SHARE=1e-9)
    for parameters in ([weight, table], [weight]):  # a sparse gradient has no norm
        observed.begin()
        for each in parameters:
            observed.add(torch.optim.SGD([each], lr=0.1))
        assert observed.finish() == {}


@pytest.mark.parametrize("nesterov", [False, True])
def test_nesterov_with_a_closure_has_no_norm(torch: Any, sent: Sent, nesterov: bool) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=nesterov)
    closure = closure_of(torch, model, optimizer)
    for _ in range(3):
        optimizer.step(closure)
    found = sent()
    assert steps_of(found) == [1, 2, 3]
    assert all(("optim/grad_norm" in values) != nesterov for values in found)


def test_sparse_gradients_have_no_norm(torch: Any, sent: Sent) -> None:
    model = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    for _ in range(2):
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
    found = sent()
    assert steps_of(found) == [1, 2]
    assert not any("norm" in name for values in found for name in values)


def test_half_precision_has_a_norm_in_single_precision(torch: Any, sent: Sent) -> None:
    model = torch.nn.Linear(4, 2, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    model.weight.grad = torch.full_like(model.weight, 3e38)
    torch.optim.SGD([model.weight], lr=0.0).step()
    (values,) = sent()
    assert values["optim/param_norm"] == pytest.approx(8**0.5)


NOT_OBSERVED = "client_lib: the steps of this rank are not observed any more"

SCRIPTS = {
    "sgd": """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, foreach=True)
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
torch.save(model.state_dict(), OUT)
""",
    "compiled step": """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)
@torch.compile(backend="eager")
def step():
    optimizer.step()
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    step()
from torch._dynamo.utils import counters
print(dict(counters["graph_break"]), dict(counters["resumes"]), counters["stats"])
torch.save(model.state_dict(), OUT)
""",
}


@pytest.mark.process
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_and_computes_the_same(name: str, lines: Lines, tmp_path: Path) -> None:
    done = []
    for observed in (False, True):
        script = tmp_path / "train.py"
        out = tmp_path / "out.pt"
        script.write_text(SCRIPTS[name].replace("OUT", repr(str(out))))
        environment = {key: each for key, each in os.environ.items() if key != "RANK"}
        if observed:
            environment["CLIENT_LIB_METRICS"] = str(lines.path)
        run = subprocess.run(
            [sys.executable, str(RUNNER), str(script)],
            env=environment,
            capture_output=True,
            timeout=200,
        )
        assert run.returncode == 0, run.stderr.decode()
        told = re.sub(rb"^W\d.*?\]", b"", run.stderr)  # the time in a warning of torch
        done.append((run.stdout, told, out.read_bytes()))
    assert done[0] == done[1]
    if name == "sgd":
        assert lines.read()[-1][2] == 30


@pytest.mark.process
@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("odd state", True),
        ("CUDA error: an illegal memory access", False),  # of the script, whose next call raises it
    ],
)
def test_an_error_of_the_hooks_is_one_line_and_none_of_the_script(
    lines: Lines, tmp_path: Path, error: str, told: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "class State(dict):\n"
        "    def values(self):\n"
        f"        raise RuntimeError({error!r})\n"
        "class Odd(torch.optim.Optimizer):\n"
        "    def __init__(self, parameters):\n"
        "        super().__init__(parameters, {'lr': 0.1})\n"
        "    def step(self):\n"
        "        self.state = State()\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = Odd(model.parameters())\n"
        "for step in range(3):\n"
        "    optimizer.step()\n"
        "print('ended')\n"
    )
    run = run_ranked(script, lines)
    assert (run.returncode, run.stdout) == (0, "ended\n")
    ours = [line for line in run.stderr.splitlines() if line.startswith("client_lib: ")]
    assert ours == ([f"{NOT_OBSERVED} (RuntimeError: {error})"] if told else [])
    assert lines.read() == []


@pytest.mark.process
def test_a_torch_that_refuses_the_hooks_is_imported(lines: Lines, tmp_path: Path) -> None:
    optim = tmp_path / "torch" / "optim"
    optim.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text(
        "import torch.optim.optimizer\nclass compiler:\n    is_compiling = bool\n"
    )
    (optim / "__init__.py").write_text("")
    (optim / "optimizer.py").write_text(
        "def register_optimizer_step_pre_hook(hook):\n"
        "    raise TypeError('no hooks')\n"
        "register_optimizer_step_post_hook = register_optimizer_step_pre_hook\n"
    )
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint('ended')\n")
    run = run_ranked(script, lines)
    assert (run.returncode, run.stdout) == (0, "ended\n"), run.stderr
    assert run.stderr == f"{NOT_OBSERVED} (TypeError: no hooks)\n"
