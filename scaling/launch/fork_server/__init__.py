"""Ranks forked by a process that has imported torch: its clients and the server itself."""
