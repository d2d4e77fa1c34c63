"""Notes all that a script can see of its process.

A script executes this text in a module of its own, which nobody imports, and calls `at_start` and
`at_end`. It imports nothing before it has noted what is imported.
"""

import sys

CONTAINERS = (dict, list, set, frozenset, tuple)


def described(value):
    """A line that is the same in two processes if the value is."""
    kind = type(value)
    if kind in CONTAINERS:
        return f"{kind.__name__} of {len(value)}"
    if kind in (bool, int, str, type(None)):
        return repr(value)[:80]
    return "{} {}".format(
        kind.__name__, getattr(value, "__qualname__", "") if isinstance(value, type) else ""
    )


# Caches, addresses, texts made of sets, the folder of the script; _cython_* holds what the compiled
# modules share, _handlerList handlers that are not collected yet, SESSION_ID a random number.
LEFT_OUT = {
    "__warningregistry__",
    "_cache",
    "cache",
    "ORIGINAL_DIR",
    "REGISTRY_KEY",
    "STATE_KEY",
    "meta_path",
    "modules",
    "modulesbyfile",
    "_filesbymodname",
    "path_importer_cache",
    "_shutdown_locks",
    "generator",
    "ContStr",
    "PseudoExtras",
    "PseudoToken",
    "String",
    "StringPrefix",
    "Triple",
    "_handlerList",
    "SESSION_ID",
}


MODULES_LEFT_OUT = {
    # with `import *` it copies what its package holds by then
    "scipy._lib._array_api_compat_vendor",
    # it keeps the last element of a set of functions, which are ordered by their addresses
    "scipy.sparse._data",
}


def attributes(module):
    return {
        name: described(value)
        for name, value in dict(vars(module)).items()
        if name not in LEFT_OUT
        and getattr(module, "__name__", "") not in MODULES_LEFT_OUT
        and not (type(value) is int and value > 10**9)
        and name != "__file__"
    }


def registries_of_classes(module):
    """The containers of classes that the module defines."""
    found = {}
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            for name, held in dict(vars(value)).items():
                if type(held) in CONTAINERS[:3]:
                    found[f"{value.__qualname__}.{name}"] = described(held)
    return found


def finders():
    """The finders of modules, without those of the rank runner and the pool."""
    return [
        repr(finder).partition(" at ")[0]
        for finder in sys.meta_path
        if type(finder).__name__ not in ("_Hooks", "Hidden")
    ]


def at_start():
    return {
        "modules": sorted(sys.modules),
        "finders": finders(),
        "path": [list(sys.path)[1:], len(sys.path_hooks)],
        "attributes": {
            name: attributes(module)
            for name, module in list(sys.modules.items())
            if name != "__main__"
        },
    }


def at_end():
    seen = {"modules": sorted(sys.modules), "attributes": {}, "classes": {}}
    for name, module in list(sys.modules.items()):
        if name != "__main__" and hasattr(module, "__dict__"):
            seen["attributes"][name] = attributes(module)
            seen["classes"][name] = registries_of_classes(module)
    loaded = dict(sys.modules)
    seen["finders"] = finders()
    seen.update({name: look(loaded) for name, look in LOOKS.items()})
    return seen


def atexit_calls(loaded):
    import atexit

    # it registers itself when it is first used, in a warm rank with its import
    weakref = loaded.get("weakref")
    return atexit._ncallbacks() - bool(
        weakref and getattr(weakref.finalize, "_registered_with_atexit", False)
    )


def warning_filters(loaded):
    import _warnings

    return [repr(entry) for entry in _warnings.filters]


def environment(loaded):
    import os

    return {
        name: value
        for name, value in os.environ.items()
        if "CHECKPOINT" not in name
        and "/worker" not in value
        and "PORT" not in name
        and "KUBEFLOW" not in name
    }


def codecs(loaded):
    import encodings

    return sorted(encodings._cache)


def copyreg(loaded):
    return sorted(map(str, loaded["copyreg"].dispatch_table)) if "copyreg" in loaded else None


def loggers(loaded):
    if "logging" not in loaded:
        return None
    root = loaded["logging"].root
    seen = {"": [root.level, repr(root.handlers)], "lowest": root.manager.disable}
    for name, logger in root.manager.loggerDict.items():
        handlers = [type(handler).__name__ for handler in getattr(logger, "handlers", ())]
        parent = getattr(getattr(logger, "parent", None), "name", None)
        seen[name] = [type(logger).__name__, getattr(logger, "level", None), parent, handlers]
    return seen


def multiprocessing(loaded):
    if "multiprocessing.context" not in loaded:
        return None
    context = loaded["multiprocessing.context"]
    reducers = (
        context.reduction.ForkingPickler._extra_reducers
        if "multiprocessing.reduction" in loaded
        else {}
    )
    finalizers = getattr(loaded.get("multiprocessing.util"), "_finalizer_registry", {})
    return [
        context._default_context._actual_context is None,
        sorted(map(str, reducers)),
        len(finalizers),
    ]


def threads(loaded):
    threading = loaded.get("threading")
    return threading and [
        threading.active_count(),
        len(getattr(threading, "_threading_atexits", ())),
    ]


def of_torch(loaded):
    torch = loaded.get("torch")
    if torch is None:
        return None
    pytree = loaded.get("torch.utils._pytree")
    return {
        "nodes": pytree and len(pytree.SUPPORTED_NODES),
        "threads": torch.get_num_threads(),
        "types": [str(torch.get_default_dtype()), torch.get_default_device().type],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "loaders": [entry[0] for entry in torch.serialization._package_registry],
        "safe": sorted(map(str, torch.serialization.get_safe_globals())),
        "backends": list(torch.distributed.Backend.backend_list),
        "groups": torch.distributed.is_initialized(),
        "divergences": sorted(str(pair) for pair in torch.distributions.kl._KL_REGISTRY),
    }


def of_transformers(loaded):
    auto = loaded.get("transformers.models.auto.configuration_auto")
    return auto and [len(auto.CONFIG_MAPPING), len(auto.CONFIG_MAPPING._extra_content)]


LOOKS = {
    look.__name__: look
    for look in (
        atexit_calls,
        warning_filters,
        environment,
        codecs,
        copyreg,
        loggers,
        multiprocessing,
        threads,
        of_torch,
        of_transformers,
    )
}
