"""The measured side: the only floor that imports torch. Runs in its own process."""
