"""Results: the event log, records, Run, Ranks, Measurements, Sweep."""
