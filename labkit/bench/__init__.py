"""The measured side: the process of the experiment.

Below the course it is the only room that imports torch, but for `stamps.timeline` and
`instruments.machine`, which are imported here and where a script has torch.
"""
