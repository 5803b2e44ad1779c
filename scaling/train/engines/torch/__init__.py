"""PyTorch's own parallelism under one step: FSDP2 and its pipeline schedules."""
