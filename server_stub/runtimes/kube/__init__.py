"""The Kubernetes runtime: runs attempts as PyTorchJobs, or as TrainJobs, of Kubeflow.

Modules and folders:

    runtime               the Runtime protocol, and the runtime made from the server's settings
    gang                  one attempt, from its objects to its end, and its reports to the service
    cluster               what all attempts share in a namespace, and the watches
    objects_api           requests that create, find and delete the objects of attempts
    objects               creation and removal of the objects of an attempt, and its record on disk
    pod_log               logs that come from the cluster
    queues                whether Kueue takes jobs, and the queues in which they wait
    doctor                checks of the cluster and of the server's rights
    names                 names and labels of objects, and the paths of a pod
    check                 pure: what a cluster rejects in a job spec, and notices
    catalogue             what a job may ask for, read from the operator's file
    pod_templates         dry runs of the pod templates in that file
    render                pure: the objects of an attempt
    observe               pure: the state of the cluster and its meaning
    workload              the interface of a kind of object that runs pods
    options               the options of a cluster
    pytorchjob, trainjob  the kinds: of the training operator, and of Kubeflow Trainer 2
    api                   requests and watches; the only module that imports `kubernetes`
"""
