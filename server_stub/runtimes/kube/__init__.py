"""The Kubernetes runtime: attempts as PyTorchJobs of the Kubeflow training operator. The twin of `runtimes.local`.

Only the application that builds a server imports this, from `assembly`; the service knows the Runtime protocol alone.

    assembly, runtime     the parts put together; the Runtime protocol
    gang, making, record  one attempt, from its objects to its end; what is written down of it
    removals              attempts that have ended take turns to be removed
    catalogue, catalogue_parts, catalogue_file
                          what a job may ask for; `catalogue_file` reads it, the others are pure
    fields, needs, names, plan, pod, storage, policy, render, objects, options, opening
                          pure: what becomes of each field, what is created
    facts, inventory, words, sentences, digest, refusals, observe, leaving, elastic, ending, remarks
                          pure: what the cluster says, and what that means
    acts, watch, pod_log, reading, asking, api
                          the requests; `api` alone imports `kubernetes`
    doctor, fit, permissions, probe
                          what could be wrong here
"""
