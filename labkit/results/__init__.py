"""Results: Run, Ranks, Measurements, Sweep, and the records that hold them."""
