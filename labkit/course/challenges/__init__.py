"""The challenges of the course, one file for each notebook."""
