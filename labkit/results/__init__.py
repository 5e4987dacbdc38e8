"""What came out: the event log, records, Run, Ranks, Measurements, Sweep."""
