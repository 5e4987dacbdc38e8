"""What watches a loop that is not ours: stamps in the user's own process."""
