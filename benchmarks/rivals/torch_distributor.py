"""pyspark's TorchDistributor in local mode, run by the interpreter of .venv-bench-functions:
seconds on stderr.

The Spark session, a JVM, runs already, as in a notebook that uses Spark; starting it is not
counted.
"""

import sys
import time

import torch  # the caller has it, as with the others
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession


def train():
    import torch

    return torch.__version__


if __name__ == "__main__":
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    try:
        began = time.perf_counter()
        value = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(train)
        took = time.perf_counter() - began
    finally:
        spark.stop()
    assert value == torch.__version__
    print(took, file=sys.stderr)
