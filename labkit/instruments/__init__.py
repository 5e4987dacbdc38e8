"""What looks at a loop and its machine: telemetry, stacks, the loader's inside, growth."""
