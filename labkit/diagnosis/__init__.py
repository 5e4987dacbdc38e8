"""Pure functions of results: evidence, causes, verdicts, cost."""
