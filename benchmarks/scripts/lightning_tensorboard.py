"""Lightning with its default logger, which is TensorBoard's where that is installed."""

from lightning_module import fit

if __name__ == "__main__":
    fit()
