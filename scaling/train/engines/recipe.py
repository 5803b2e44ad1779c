"""The optimizer that every engine runs."""

# AdamW as Llama 2 was trained, but at a rate that shows in a dozen steps.
LEARNING_RATE = 1e-3
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
