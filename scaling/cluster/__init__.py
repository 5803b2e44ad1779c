"""What a study runs on: GPUs as data sheets state them, clusters, what a site's Slurm wants."""
