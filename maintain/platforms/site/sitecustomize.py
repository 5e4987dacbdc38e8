"""Makes this Python more like another system's, as `check.py` asks through the environment.

LABKIT_START_METHOD: multiprocessing's. LABKIT_LIKE_A_MAC=1: without the names that a Mac lacks
(/proc stays, but labkit looks for processes there only where it has these names).
"""

import multiprocessing
import os

METHOD = os.environ.get("LABKIT_START_METHOD")
LACKING = ("pidfd_open", "sched_getaffinity")

if METHOD:
    multiprocessing.set_start_method(METHOD, force=True)
if os.environ.get("LABKIT_LIKE_A_MAC") == "1":
    for name in LACKING:
        delattr(os, name)
