"""The Kubernetes runtime: runs attempts as PyTorchJobs, or as TrainJobs, of Kubeflow.

Modules and folders:

    assembly, options     the runtime made from the server's settings
    runtime, gang         the Runtime protocol; one attempt, from its objects to its end
    report                what the service is told about an attempt
    cluster               the parts that all attempts share, and the watches
    create, removal       creation and removal of the objects of an attempt
    queues                the queues of Kueue in which jobs wait
    record                the state of an attempt on disk
    doctor                checks of the cluster and of the server's rights
    names                 names and labels of objects
    check                 pure: what a cluster rejects in a job spec, and notices
    catalogue             what a job may ask for, read from the operator's file
    render                pure: the objects of an attempt
    observe               pure: the state of the cluster and its meaning
    workload              the interface of a kind of object that runs pods
    pytorchjob, trainjob  the kinds: of the training operator, and of Kubeflow Trainer 2
    api                   requests, watches, logs; the only module that imports `kubernetes`
"""
