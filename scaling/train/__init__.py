"""The program of one rank, which runs real training steps."""
