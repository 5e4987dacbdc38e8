"""What a person sees: figures, live view, panels, progress."""
