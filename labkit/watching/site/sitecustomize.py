"""Lets `labkit watch` and `labkit tune` see a script's loops; Python imports this at its start.

The folder comes through PYTHONPATH, so every Python that the script starts finds it too. Nothing
happens until one of them imports torch's DataLoader or optimizers, which are then hooked
(`labkit.watching.hook` to watch, `labkit.watching.trial_hook` to try a change).

A script that has a `labkit` of its own, a folder or another version, keeps it and is not watched.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))  # of the package
OURS = os.path.join(ROOT, "__init__.py")
HOOKED = ["torch.utils.data.dataloader", "torch.optim.optimizer"]
WATCHED = os.environ.get("LABKIT_WATCHING", "")  # now: a script may clear its environment
TRIAL = os.environ.get("LABKIT_TRIAL", "")


class Finder:
    """Finds our package, and the modules of `HOOKED` as others would; hooks each once loaded."""

    def find_spec(self, name, path=None, target=None):
        """Return the spec of `labkit`, the script's before ours, or of a module to hook."""
        if name == "labkit":
            ours = importlib.util.spec_from_file_location(
                name, OURS, submodule_search_locations=[ROOT]
            )
            return PathFinder.find_spec(name) or ours
        if name not in HOOKED:
            return None
        HOOKED.remove(name)  # so that this asks the other finders
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                hook(module)

            spec.loader.exec_module = exec_module
        return spec


def hook(module):
    """Hook a module of theirs; whatever goes wrong here is not the script's affair."""
    try:
        theirs = getattr(importlib.util.find_spec("labkit"), "origin", None)
        if theirs is None or not os.path.samefile(theirs, OURS):
            raise ImportError("the script has another labkit than the one that watches it")
        if TRIAL:
            importlib.import_module("labkit.watching.trial_hook").install(module, TRIAL)
        vars(importlib.import_module("labkit.watching.run_folders"))["of_script"] = WATCHED
        importlib.import_module("labkit.watching.hook").install(module)
    except Exception as error:
        mark("failed", f"{type(error).__name__}: {error}")


def mark(name, text=""):
    """Leave a file in the folder of the runs: `labkit watch` says how far we came."""
    try:
        with open(os.path.join(WATCHED, name), "a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass


sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
if WATCHED:
    sys.meta_path.insert(0, Finder())
    mark("python")
this = sys.modules.pop("sitecustomize", None)
try:  # the one that would have been imported without us
    import sitecustomize  # noqa: F401
except ImportError:
    if this is not None:
        sys.modules["sitecustomize"] = this
