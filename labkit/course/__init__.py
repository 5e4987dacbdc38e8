"""Guesses, challenges, claims, the slow script, the recorded runs."""
