"""Figures, which are drawn of snapshots; panels, views and commands, which stand on the api."""

FIGURE_PX = {False: 660, True: 780}  # height of a figure, 900 wide; True: with the run before
