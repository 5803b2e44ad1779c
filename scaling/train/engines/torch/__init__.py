"""The engine of PyTorch: FSDP2 and torch's pipeline schedules."""
