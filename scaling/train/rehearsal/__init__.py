"""One rank's training steps without its device: what it waits for and what it holds."""
