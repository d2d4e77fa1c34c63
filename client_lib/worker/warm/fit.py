"""Decides which ranks may be warm: a rank may if a fresh start would give an equal process.
Pure.

A library that the pool has imported has read its variables there. A job with another value of such
a variable starts fresh. Thread counts and matplotlib's backend are exceptions: every rank sets them
again (rank.Warm).
"""

import os
import re
from typing import Dict, FrozenSet, Iterable, NamedTuple, Optional, Tuple

from client_lib.launcher_protocol.plan import ELASTIC, WorkerPlan
from client_lib.launcher_protocol.rank_processes import Process

READ_AT_LOAD: Tuple[Tuple[str, str], ...] = (
    ("LD_*", "the dynamic loader"),
    ("MALLOC_*, GLIBC_TUNABLES, GLIBCXX_TUNABLES, JEMALLOC_*, TCMALLOC_*", "the allocators"),
    ("LANG, LANGUAGE, LC_*", "Python's text encoding; libraries that format"),
    ("PYTHON*", "the interpreter"),
    (
        "OMP_*, GOMP_*, KMP_*, ACC_*, GFORTRAN_*, I_MPI_*, INTEL_*",
        "OpenMP and the compilers' libraries",
    ),
    ("MKL_*, MKLDNN_*, DNNL_*, ONEDNN_*, OPENBLAS_*, GOTO_*, BLIS_*, NVPL_*", "the BLAS libraries"),
    ("NUMEXPR_*, NUMBA_*, NPY_*, NUMPY_*", "numpy and what compiles for it"),
    ("ATEN_*, C10_*, TORCH*, PYTORCH_*, TRITON_*", "torch, its compilers and its logging"),
    (
        "AOT_*, AOTINDUCTOR_*, INDUCTOR_*, CUTLASS_*, CUTEDSL_*, FLYDSL_*, FX_*, PT2_*, "
        "PARTITIONER_*, KINETO_*, LLVM_*, COMPILE_STROBELIGHT_*, ENABLE_HOST_SIDE_TMA, "
        "ENABLE_PERSISTENT_TMA_MATMUL, ENABLE_TEMPLATE_*, ENABLE_TMA_*, DUMP_AOTI_MINIFIER, "
        "FAKE_ALLOW_META, LOG_AUTOTUNE_RESULTS, LOG_TLPARSE, LOGLEVEL, "
        "UNSAFE_SKIP_FSDP_MODULE_GUARDS, CXX",
        "parts of torch, by names of their own",
    ),
    ("SYMPY_*, MPMATH_*, NETWORKX_*, SAGE_ROOT", "what torch's compilers compute with"),
    (
        "CUDA_*, CUBLAS*, CUDNN_*, NVIDIA_*, NVRTC_*, LIBNVVM_*, NV_*, PTXAS_*, CASK_*",
        "the GPU libraries",
    ),
    ("HIP_*, ROCR_*, HSA_*", "the GPU libraries of AMD"),
    ("HOME, USER, USERNAME, LOGNAME, LNAME, XDG_*, TMPDIR, TEMP, TMP", "folders of caches"),
    ("OPENSSL_*, PSUTIL_*, JOBLIB_*, LOKY_*", "libraries that others import"),
    (
        "HF_*, HUGGINGFACE_*, TRANSFORMERS_*, DIFFUSERS_*, DATASETS_*, SAFETENSORS_*",
        "the Hugging Face libraries",
    ),
    (
        "TOKENIZERS_LOG, ACCELERATE_ENABLE_RICH, ACCELERATE_LOG_LEVEL, "
        "ACCELERATE_USE_MEGATRON_LM, USE_HUB_KERNELS, DISABLE_TELEMETRY, DO_NOT_TRACK, "
        "EAGER_IMPORT, NPU_FA2_SPARSE_MODE, OAUTH_CLIENT_ID, OAUTH_SCOPES, OPENID_PROVIDER_URL, "
        "SAGEMAKER_JOB_NAME, SM_HP_MP_PARAMETERS",
        "the same",
    ),
    (
        "USE_TF, USE_TORCH, USE_TORCH_XLA, USE_FLAX, USE_JAX, TF_*, XLA_*, JAX_*, KERAS_*",
        "frameworks that choose each other",
    ),
    (
        "MPL*, WANDB_*, SKLEARN_*, SCIPY_*, POLARS_*, ARROW_*, PANDAS_*, RAY_*",
        "other packages of training scripts",
    ),
)
"""Patterns of variables that libraries read when they are loaded, and these libraries."""

THREAD_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
READ_LATER = frozenset(
    (
        *THREAD_COUNTS,  # set in every rank
        "MPLBACKEND",  # set by every notebook; rank.Warm sets it again
        "CUDA_VISIBLE_DEVICES",  # these are read at the first use of a GPU, always after the fork
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "TORCH_FR_BUFFER_SIZE",  # with the first process group
        "TORCHELASTIC_ERROR_FILE",  # these at a failure
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE",  # these with a process group
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "WANDB_NAME",  # and these with each call
        "WANDB_RUN_ID",
        "WANDB_PROJECT",
    )
)
"""Variables that match a pattern above and may differ, like all that are secret by name."""

_NO_SECRET = (
    "HF_TOKEN_PATH",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
    "TORCH_COMPILE_CACHE_KEY_TAG",
    "TORCH_COMPILE_STICKY_PGO_KEY",
)

_SECRET = re.compile("TOKEN($|_)|_KEY($|_)|SECRET|PASSWORD")
_NAMES = frozenset(
    name for names, _ in READ_AT_LOAD for name in names.split(", ") if not name.endswith("*")
)
_BEGINNINGS = tuple(
    name[:-1] for names, _ in READ_AT_LOAD for name in names.split(", ") if name.endswith("*")
)


class PoolState(NamedTuple):
    """The facts of a pool that decide."""

    python: str
    environment: Dict[str, str]
    names: FrozenSet[str]
    """Top-level names of the modules that the process has imported since its start."""


def is_read_at_load(name: str) -> bool:
    if name in READ_LATER or (_SECRET.search(name) and name not in _NO_SECRET):
        return False
    return name in _NAMES or name.startswith(_BEGINNINGS)


def environment_of(environment: Dict[str, str]) -> Dict[str, str]:
    """Environment of a pool for jobs with this environment: the variables that are read at load."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in ("PATH", "TZ") or is_read_at_load(name)
    }
    one_thread = dict.fromkeys(THREAD_COUNTS, "1")  # a process with more cannot be forked
    return {**kept, **one_thread}


def refusal(
    pool: PoolState, plan: WorkerPlan, process: Process, beside: Iterable[str]
) -> Optional[str]:
    """The reason why this rank must start fresh; None: it may be warm. `beside`:
    names in the script's folder.
    """
    if plan.python is None:
        return "the command is no Python script"
    if plan.python != pool.python:
        return "it runs with %s, the warm pool with %s" % (plan.python, pool.python)
    if not plan.uses_rank_runner:
        return "it runs without the rank runner"
    if plan.type == ELASTIC:
        return "torchrun starts its ranks"
    if process.stdin != os.devnull:
        return "it reads the submitter's terminal"
    loaded = pool.environment
    given = process.environment
    names = sorted(
        name
        for name in {**loaded, **given}
        if is_read_at_load(name) and loaded.get(name) != given.get(name)
    )
    if names:  # without values: they may be secret
        return "%s: other than when the warm pool loaded its libraries" % ", ".join(names[:5])
    for name in THREAD_COUNTS:
        if not given.get(name, "1").isdigit():
            return "%s=%s is not one number" % (name, given[name])
    if any(not os.path.isabs(path) for path in given.get("PYTHONPATH", "/").split(os.pathsep)):
        return "PYTHONPATH holds a relative path"
    for name in sorted(beside):
        if name.partition(".")[0] in pool.names and (
            name.endswith((".py", ".so")) or "." not in name
        ):
            return (
                "%s beside the script would be imported instead of the library of that name" % name
            )
    return None
