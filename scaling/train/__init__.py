"""Real training steps: the program of one rank. Only this package imports torch and DeepSpeed."""
