"""The kernels a layout names, and what each needs."""
