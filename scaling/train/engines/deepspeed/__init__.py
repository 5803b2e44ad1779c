"""DeepSpeed under one step."""
