"""Lightning with its CSV logger, which writes metrics.csv each 100 steps."""

from lightning.pytorch.loggers import CSVLogger
from lightning_module import fit

if __name__ == "__main__":
    fit(logger=CSVLogger("out"))
