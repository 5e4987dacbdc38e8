"""The processes of a run: supervisor, its family, device lock, leftovers."""
