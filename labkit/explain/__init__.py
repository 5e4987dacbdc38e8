"""Pure functions from what was recorded to an answer: numpy only, no torch, no widgets."""
