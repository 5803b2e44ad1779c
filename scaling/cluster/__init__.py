"""The hardware of a study: GPUs and their data sheets, clusters, nodes, and Slurm options."""
