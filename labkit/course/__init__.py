"""Guesses, challenges, mysteries, the slow script, grading, the fault set."""
