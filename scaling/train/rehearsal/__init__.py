"""Rehearse one rank's training steps without its device: its waits and its memory."""
