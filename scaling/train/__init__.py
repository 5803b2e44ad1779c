"""Real training steps: the program of one rank. Engines are imported in their own rooms."""
