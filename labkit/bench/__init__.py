"""The measured side: the process of the experiment. The only floor that imports torch."""
