"""Guesses, challenges, mysteries, the slow script, the fault set."""
