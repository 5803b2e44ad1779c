"""Ways to start the ranks of a point: on this machine, by srun."""
