"""Pure functions of results: diagnosis, prediction, cost."""
