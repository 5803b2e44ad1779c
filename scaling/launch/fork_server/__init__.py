"""Fork ranks from a process that has imported torch: clients, protocol and server."""
