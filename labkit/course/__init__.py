"""Guesses, challenges, mysteries, the slow script, the recorded runs."""
