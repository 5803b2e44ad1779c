"""The engine of DeepSpeed: ZeRO and its pipelines."""
