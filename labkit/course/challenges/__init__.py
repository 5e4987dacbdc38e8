"""The challenges of the course, by what they are answered with: settings, Python, PyTorch.

A challenge is a `KnobChallenge`, answered with settings, or a check under `@code`, answered with a
function or a class: its docstring is the title and the task. Both are found by being in the file; a
key begins with the notebook's number.
"""
