"""Training engines by name."""
