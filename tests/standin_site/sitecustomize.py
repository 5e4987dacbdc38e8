"""Gives every Python process that imports torch the stand-in cards named in LABKIT_STANDIN.

For tests that start whole runs: put this folder on PYTHONPATH and set LABKIT_STANDIN="H200" or
"T4,T4"; LABKIT_STANDIN_NUMBERS="0" leaves the numbers out, so that models of any size run.
"""

import importlib.machinery
import os
import sys
from pathlib import Path


class AfterTorch(importlib.machinery.PathFinder):
    """Finds torch as always, and installs the stand-in once it has been imported."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(cls)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            sys.path.append(str(Path(__file__).parents[1]))
            import standin_gpu

            standin_gpu.install_from_environment()

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("LABKIT_STANDIN"):
    sys.meta_path.insert(0, AfterTorch)
