"""The kernel's side of running: specs, runs, the launcher, the supervisor and the records."""
