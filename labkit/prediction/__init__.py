"""What a run would do with other settings: a simulation of its loader, and its costs."""
