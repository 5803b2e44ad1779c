"""The models that are trained, as plain torch modules that hold one rank's slice."""
