"""A line of torchrun (`python -m torch.distributed.run`, `... .launch`) as fields of a job. Pure.

Five tables have all of torchrun's options; a test compares them with torch's own parser.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from client_lib.errors import InvalidRequest, NotSupported
from client_lib.launch_lines import lines
from client_lib.launch_lines.lines import (
    LaunchLine,
    Machine,
    OptionTable,
    dropped,
    split,
    what_runs,
    whole_number,
)
from client_lib.launcher_protocol.plan import RANK_VARIABLES

FLAGS = frozenset({"standalone", "module", "no-python", "run-path"})
READ = frozenset({"nnodes", "nproc-per-node", "max-restarts", "shutdown-timeout"})

DROPPED = lines.by_name(
    {
        lines.RENDEZVOUS: (
            "rdzv-backend rdzv-endpoint rdzv-id rdzv-conf master-addr master-port local-addr"
        ),
        lines.ONE_SUBMIT: "node-rank",
        lines.LOGS: "log-dir redirects tee log-line-prefix-template local-ranks-filter "
        "duplicate-stdout-filters duplicate-stderr-filters logs-specs",
        lines.PROGRAM: "role monitor-interval start-method event-log-handler signals-to-handle",
        "ranks are not bound to NUMA nodes": "numa-binding",
    }
)
REFUSED: dict[str, str] = {
    "virtual-local-rank": "LOCAL_RANK is always the rank within the worker; leave the option out",
    "help": "`client-lib submit --help` lists the options of a job",
    "print-completion": "`client-lib completion` prints that of client-lib",
}
_REFUSED_FLAGS = frozenset({"virtual-local-rank", "help"})

TABLE = OptionTable(
    "torchrun",
    flags=FLAGS | _REFUSED_FLAGS,
    valued=READ | DROPPED.keys() | (REFUSED.keys() - _REFUSED_FLAGS),
    short={"m": "module", "r": "redirects", "t": "tee", "h": "help"},
    # A misspelling that a PyTorch tutorial has.
    misspelt={"nproc-per-nodes": "nproc-per-node"},
)
# a script that declares --local-rank gets it, any other finds it in its environment
LAUNCH_TABLE = replace(TABLE, launcher="torch.distributed.launch", flags=TABLE.flags | {"use-env"})


def read(launcher: str, words: Sequence[str], machine: Machine, python: str | None) -> LaunchLine:
    """`python`: the interpreter that the line names.
    Raises InvalidRequest or NotSupported: see `client_lib.launch_lines.read`."""
    line = split(words, TABLE if launcher == TABLE.launcher else LAUNCH_TABLE)
    # torchrun takes options from the environment that the line leaves out
    preset = {}
    for name in sorted((TABLE.valued | FLAGS) - line.given.keys()):
        text = machine.environment.get(_variable(name))
        if text is not None and not (name in FLAGS and text == "0"):
            preset[name] = "" if name in FLAGS else text
    given = {**preset, **line.given}
    for name in given.keys() & REFUSED.keys():
        raise NotSupported(f"{launcher} --{name} is not supported here", hint=REFUSED[name])
    notices = [f"{word} is read as --{meant}" for word, meant in line.misspelt.items()]
    for name, value in preset.items():
        notices.append(f"{_variable(name)} of the environment is read as --{name} {value}".rstrip())
    fields = _workers(given)
    is_elastic = "elastic_min_workers" in fields
    given_by = dict.fromkeys(fields, "nnodes")
    if "nproc-per-node" in given:
        fields["processes_per_worker"] = _processes(given["nproc-per-node"], machine.cores, notices)
        given_by["processes_per_worker"] = "nproc-per-node"
    if "max-restarts" in given:
        field = "elastic_max_restarts" if is_elastic else "max_retry"
        fields[field] = whole_number("--max-restarts", given["max-restarts"], 0)
        given_by[field] = "max-restarts"
    if "shutdown-timeout" in given:
        fields["grace_s"] = float(whole_number("--shutdown-timeout", given["shutdown-timeout"], 0))
        given_by["grace_s"] = "shutdown-timeout"
    runs = what_runs(launcher, given, line.rest, python)
    if not runs["script"].endswith(".py"):  # a `python -m` line of its own would have none
        fields["env_variables"] = {RANK_VARIABLES: "1"}
    return LaunchLine(
        launcher,
        {**runs, **fields},
        {"processes_per_worker": 1, **({"elastic_max_restarts": 0} if is_elastic else {})},
        {
            "env_variables": f"the {launcher} line",
            **{field: f"--{option} {given[option]}" for field, option in given_by.items()},
        },
        [*notices, *dropped(given, DROPPED)],
        python,
    )


def _variable(option: str) -> str:
    """Source: torch 2.15, distributed/argparse_util.py, env."""
    return f"PET_{option.replace('-', '_').upper()}"


def _workers(given: Mapping[str, str]) -> dict[str, Any]:
    """`--nnodes 2` or `--nnodes 1:4`. Raises InvalidRequest: no such numbers, or
    several nodes with --standalone.
    """
    if "nnodes" not in given:
        return {}
    text = given["nnodes"]
    least, _, most = text.partition(":")
    low = whole_number("--nnodes", least, 1)
    high = whole_number("--nnodes", most, low) if most else low
    if high > 1 and "standalone" in given:
        raise InvalidRequest(
            f"--standalone is one node, and --nnodes {text} are several",
            hint="leave one of them out",
        )
    if low == high:
        return {"n_workers": high}
    return {
        "type": "pytorch_elastic",
        "n_workers": high,
        "elastic_min_workers": low,
        "elastic_max_workers": high,
    }


def _processes(text: str, cores: int | None, notices: list[str]) -> int | str:
    """`gpu` is the job's own default: one per GPU of the worker. Raises
    InvalidRequest for what is no number.
    """
    if text == "gpu":
        return "default"
    if text == "auto":
        notices.append(
            "--nproc-per-node=auto is one process per GPU of a worker, and one where it has none"
        )
        return "default"
    if text == "cpu":
        if cores is None:
            raise InvalidRequest(
                "--nproc-per-node=cpu: how many cores a worker has is not known here",
                hint="give the number",
            )
        notices.append(f"--nproc-per-node=cpu is {cores}, the cores of a worker")
        return cores
    return whole_number("--nproc-per-node", text, 1)
