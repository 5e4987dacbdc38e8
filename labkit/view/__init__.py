"""Figures, which are drawn of snapshots; panels, views and commands, which stand on the api."""

FIGURE_TEXT = "<labkit figure>"  # the same for every figure: nbval compares texts
# What a moment of a step is spent on: {part: (name, colour)}, in the order it happens
PARTS = {
    "wait": ("waiting for data", "#E69F00"),
    "copy": ("copy", "#AA4499"),
    "compute": ("compute", "#009E73"),
    "other": ("other", "#BBBBBB"),
}
