"""Traces of torch.profiler: read, broken down by class of time, compared, and fetched."""
