"""The kernels that a layout names, and checks that they are available."""
