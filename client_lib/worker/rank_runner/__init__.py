"""Runs a rank's script as `python script.py` does, and starts and ends faster if the script uses
torch.

    this_rank        facts of this process
    error_file       the exception that ends the script, for the launcher
    unwinding        the exception from which the main thread unwinds
    answers          handlers of the launcher's questions: unwinding, stacks
    pipes            pipes of its own for the output of a rank under torchrun
    frames           removes the runner's frames from a traceback
    open_files       files that a teardown finishes
    late             modules that are compiled only when they are needed
    device_values    (late) values that a GPU computes, read without waiting
    norms            (late) norms of gradients and parameters
    planned_steps    (late) the steps that a scheduler of learning rates plans
    optimizer_steps  (late) counts the steps of optimizers, and sends them
    step_hooks       hooks of torch's optimizers
    torch_import     the import of torch, without garbage collection
    collectives      the times at which the rank enters collectives
    master           waits for the master, and refuses a master of the script's own
    world            tells of a group of fewer ranks than the job has
    process_groups   wraps the functions of torch.distributed that begin and end groups
    hooks            lets functions run the first import of a module
    imports          names of the modules that the script has imported
    teardown         ends the process
    main             the script, from its module to its end

The launcher starts the ranks with the user's interpreter, which lacks this package. So the modules
are joined into one file, `rank_runner.py` (`client_lib.worker.joining`, which says how they must be
written). Each import before the script runs delays the start of each rank, so the file imports
hardly a module that the interpreter has not loaded already. The warm pool imports the package. One
difference from `python script.py` remains: in inspect.stack(), the runner's frames stand below the
script's.
"""
