"""Check whether a machine is fit to be measured: its facts, kernels, meters and training."""
