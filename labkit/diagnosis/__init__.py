"""Pure functions of results: diagnosis, prediction, traces, cost."""
