"""What a person sees: figures, the live canvas, the panel, progress lines, W&B."""
