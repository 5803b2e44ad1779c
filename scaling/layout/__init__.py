"""The layout of a training step: axes, batches, model shapes, refusals, pipeline stages."""
