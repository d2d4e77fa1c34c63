"""The Kubernetes runtime: attempts as PyTorchJobs of the Kubeflow training operator. The twin of `runtimes.local`.

names, options, objects, catalogue, fields, plan, pod, policy, render      pure: what is created
"""
