"""Is this machine fit to be measured? What it is, and whether its kernels and meters are right."""
