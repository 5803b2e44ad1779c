"""The models that are trained, as plain modules; one slice per rank."""
