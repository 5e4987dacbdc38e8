"""The search for better settings."""
