"""Functions as jobs: what is called (`call`), how it travels and what comes back (`payload`)."""
