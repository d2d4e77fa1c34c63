"""Plugins of other tools, which these load: submitit and Hydra. Each needs its extra
(`client-lib[submitit]`).
"""
