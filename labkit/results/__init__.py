"""Results: what the logs of a Run, Ranks and Measurements say, and the records that hold them."""
