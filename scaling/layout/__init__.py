"""What a step is laid out as: axes, batch arithmetic, model shapes, refusals, layers to stages."""
