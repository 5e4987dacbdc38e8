"""Searching for loader settings: prediction proposes, runs decide, the cheapest as good wins."""
