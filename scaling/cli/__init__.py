"""The command line: one verb for each step of a study, and its terminal output."""
