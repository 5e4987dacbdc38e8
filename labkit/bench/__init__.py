"""The measured side: the process of the experiment.

Below the course it is the only room that imports torch.
"""
