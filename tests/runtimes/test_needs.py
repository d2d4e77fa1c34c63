"""What a spec needs of a machine, what can never fit, and what is said about it."""

from typing import Any

import pytest

from client_lib.errors import ClientLibError, InvalidRequest, NeverFits
from client_lib.spec.job import JobSpec
from client_lib.spec.request import Submitter
from server_stub.runtimes.instance_types import Catalogue
from server_stub.runtimes.local.gpus import Gpu
from server_stub.runtimes.local.machine import Machine
from server_stub.runtimes.local.scheduling import Needs, needs, notices

LAPTOP = Machine("laptop", "lo", cores=8, memory_gib=16.0, boot_id="b")
GPUS = [Gpu(n, f"GPU-{n}{n}{n}{n}", "NVIDIA A100-SXM4-80GB", 81920) for n in range(4)]


NOBODY = Submitter()


def of(cards: list[Gpu] = GPUS, submitter: Submitter = NOBODY, **spec: Any) -> Needs:
    return needs(JobSpec(script="train.py", **spec), submitter, Catalogue(), LAPTOP, cards)


def said(cards: list[Gpu] = GPUS, submitter: Submitter = NOBODY, **spec: Any) -> list[str]:
    job = JobSpec(**({"script": "train.py"} | spec))
    wanted = needs(job, submitter, Catalogue(), LAPTOP, cards)
    return notices(job, submitter, wanted, LAPTOP, cards)


def refused(cards: list[Gpu] = GPUS, submitter: Submitter = NOBODY, **spec: Any) -> ClientLibError:
    with pytest.raises(InvalidRequest) as caught:
        of(cards, submitter, **spec)
    return caught.value


# --- how many


def test_an_instance_type_says_how_many_gpus_each_worker_needs() -> None:
    found = of(instance_type="a100.2gpu", n_workers=2)
    assert (found.gpus, found.least_gpus, found.allowed) == (2, 4, (0, 1, 2, 3))
    assert found.processes_with(2) == 2


def test_without_an_instance_type_it_takes_what_is_free() -> None:
    assert of().gpus is None


def test_more_workers_than_gpus_run_on_the_cpu_if_no_type_was_named() -> None:
    assert of(n_workers=5).gpus == 0
    assert said(n_workers=5) == [
        "n_workers=5 can't share 4 GPUs, one each at least: the job runs on the CPU"
    ]


def test_chosen_gpus_are_shared_evenly() -> None:
    found = of(gpus=[2, 3], n_workers=2)
    assert (found.gpus, found.allowed) == (1, (2, 3))


def test_type_nogpu_needs_none() -> None:
    assert of(type="nogpu", instance_type="a100.1gpu").gpus == 0


@pytest.mark.parametrize(
    ("bound", "allowed"),
    [
        (["2", "0"], (2, 0)),
        (["GPU-11"], (1,)),
        (["-1"], ()),
        ([], ()),
        (["0", "9", "1"], (0,)),
        (None, (0, 1, 2, 3)),
    ],
)
def test_the_submitters_own_bound_is_kept(
    bound: list[str] | None, allowed: tuple[int, ...]
) -> None:
    assert of(submitter=Submitter(gpus=bound)).allowed == allowed


def test_a_variable_of_the_spec_bounds_too() -> None:
    assert of(
        submitter=Submitter(gpus=["0", "1"]), env_variables={"CUDA_VISIBLE_DEVICES": "1, 2"}
    ).allowed == (1,)


def test_cores_are_a_fair_share_of_the_machine_or_what_the_type_says() -> None:
    assert of(n_workers=2).cores == 4
    assert of(instance_type="cpu.2C.8G").cores == 2
    assert of(instance_type="cpu.64C.1G").cores == 8
    assert of(n_workers=20).cores == 1


# --- what never fits


def test_more_gpus_than_the_machine_has_are_refused_with_the_largest_that_fits() -> None:
    error = refused(instance_type="a100.2gpu", n_workers=3)
    assert isinstance(error, NeverFits)
    assert error.message == "n_workers=3 of a100.2gpu need 6 GPUs; this machine has 4"
    assert error.hint == "the largest that fits: n_workers=2 of a100.2gpu"


def test_a_worker_larger_than_the_machine_is_told_the_largest_worker() -> None:
    assert (
        refused(instance_type="a100.8gpu").hint == "the largest that fits: n_workers=1 of a100.4gpu"
    )


def test_a_bound_is_named_where_it_is_the_reason() -> None:
    error = refused(submitter=Submitter(gpus=["1", "3"]), instance_type="a100.4gpu")
    assert error.message == (
        "n_workers=1 of a100.4gpu need 4 GPUs; this machine has 4, of which this job may use "
        "GPU 1, 3"
    )


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(NeverFits, match=r"gpus=\[7\]: this machine has GPU 0, 1, 2, 3"):
        of(gpus=[7])


def test_a_gpu_outside_of_the_submitters_bound_is_refused() -> None:
    with pytest.raises(NeverFits, match="not among those that you may use"):
        of(submitter=Submitter(gpus=["0"]), gpus=[3])


def test_gpus_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="shared evenly by n_workers=2"):
        of(gpus=[0, 1, 2], n_workers=2)


def test_a_slip_of_a_digit_does_not_start_thousands_of_processes() -> None:
    error = refused(cards=[], n_workers=9999)
    assert "a job on this machine may have 256" in error.message
    assert error.hint == "the largest that fits: n_workers=256"
    assert (
        refused(cards=[], processes_per_worker=1000).hint
        == "the largest that fits: processes_per_worker=256"
    )


# --- what is said


def test_a_gpu_type_on_a_machine_without_gpus_runs_on_the_cpu_and_says_so_once() -> None:
    found = of(cards=[], instance_type="a100.8gpu.96C.1944G", n_workers=2)
    assert (found.gpus, found.memory_gib, found.processes_with(0)) == (0, 0, 1)
    assert said(cards=[], instance_type="a100.8gpu") == [
        "instance_type='a100.8gpu' asks for 8 GPUs per worker, and this machine has no GPU: the "
        "job runs on the CPU, 1 process per worker"
    ]


def test_chosen_gpus_on_a_machine_without_any_are_a_notice_too() -> None:
    """accelerate's configuration file, which travels between machines, names them."""
    found = of(cards=[], gpus=[0])
    assert (found.gpus, found.wants_gpus, found.allowed) == (0, False, ())
    notice = "gpus=[0] asks for GPUs, and {}: the job runs on the CPU, 1 process per worker"
    assert said(cards=[], gpus=[0]) == [notice.format("this machine has no GPU")]
    bound = Submitter(gpus=[])
    assert said(submitter=bound, gpus=[0]) == [
        notice.format("the submitter may use no GPU of this machine")
    ]


def test_other_cards_than_asked_for_are_named() -> None:
    assert said(instance_type="h100.1gpu") == [
        "instance_type='h100.1gpu': the GPUs of this machine are NVIDIA A100-SXM4-80GB"
    ]
    assert said(instance_type="a100.1gpu") == []


def test_memory_is_counted_and_not_enforced_and_that_is_said_once() -> None:
    assert of(instance_type="cpu.2C.8G").memory_gib == 8
    assert said(instance_type="cpu.2C.8G") == [
        (
            "instance_type='cpu.2C.8G': 8 GiB of memory per worker are counted when the job is "
            "admitted, and not enforced"
        )
    ]


def test_more_memory_than_the_machine_has_counts_as_all_of_it() -> None:
    assert of(instance_type="cpu.8C.32G").memory_gib == 16
    assert said(instance_type="cpu.8C.32G")[0].endswith(
        "; that is more than the 16 GiB of this machine, so it counts as all of it"
    )


def test_copies_of_a_command_are_said() -> None:
    assert said(script="nvidia-smi", type="binary", instance_type="a100.4gpu") == [
        (
            "the command is started 4 times on each worker, once per GPU; processes_per_worker=1 "
            "starts it once"
        )
    ]
    assert (
        said(script="nvidia-smi", type="binary", instance_type="a100.4gpu", processes_per_worker=1)
        == []
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shm_size_class", "large"),
        ("tmp_storage", "xlarge"),
        ("include_nodes", ["n1"]),
        ("exclude_nodes", ["n1"]),
        ("internet", False),
        ("region", "SR006"),
        ("queue_name", "q"),
        ("allocation_name", "a"),
        ("elastic_min_workers", 1),
        ("elastic_max_workers", 2),
        ("elastic_max_restarts", 5),
        ("logs_dir", "/logs"),
        ("base_image", "pytorch/pytorch:2.8.0"),
    ],
)
def test_a_field_that_means_nothing_here_is_named_once(field: str, value: Any) -> None:
    lines = said(**{field: value})
    assert len(lines) == 1
    assert lines[0].startswith(f"{field}={value!r} ")


def test_a_plain_spec_is_worth_no_notice() -> None:
    assert said(cards=[]) == []


def test_the_image_is_replaced_by_the_submitters_interpreter() -> None:
    line = said(base_image="img", submitter=Submitter(python="/venv/bin/python"))[0]
    assert line == "base_image='img' is not pulled here: the job runs with /venv/bin/python"


@pytest.mark.parametrize("value", [None, "default"])
def test_elastic_fields_that_ask_for_nothing_are_not_named(value: Any) -> None:
    assert said(elastic_min_workers=value, elastic_max_workers=value) == said()


def test_elastic_fields_are_named_for_other_types_only() -> None:
    spec: dict[str, Any] = {"n_workers": 2, "elastic_min_workers": 1, "elastic_max_restarts": 3}
    assert (
        len([line for line in said(**spec) if "only type 'pytorch_elastic' reads it" in line]) == 2
    )
    assert said(**spec, type="pytorch_elastic") == said(n_workers=2)
