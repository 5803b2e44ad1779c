"""Parameters from measured rows, and how wrong they leave the prediction."""
