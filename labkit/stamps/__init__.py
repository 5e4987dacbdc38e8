"""What is written while a loop runs: clocks, steps, the event log and its rules."""
