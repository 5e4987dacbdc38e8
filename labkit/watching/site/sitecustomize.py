"""Lets `labkit watch -- python train.py` see the script's loops; Python imports this at its start.

The folder comes through PYTHONPATH, so every Python that the script starts finds it too. Nothing
happens until one of them imports torch's DataLoader or optimizers, which are then hooked
(`labkit.watching.hook`).
"""

import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
HOOKED = ["torch.utils.data.dataloader", "torch.optim.optimizer"]


class Finder:
    """Finds the modules of `HOOKED` as others would, and hooks each once it is loaded."""

    def find_spec(self, name, path=None, target=None):
        """Return the spec of a module to hook, as the other finders have it; None of others."""
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
        if importlib.util.find_spec("labkit") is None:  # the script has another environment
            root = os.path.dirname(os.path.dirname(HERE))
            spec = importlib.util.spec_from_file_location(
                "labkit", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
            )
            if spec is None or spec.loader is None:
                raise ImportError(f"no package in {root}")
            sys.modules["labkit"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules["labkit"])
        from labkit.watching.hook import install

        install(module)
    except Exception as error:
        print(f"labkit watch: not watching from inside: {error!r}", file=sys.stderr)


sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
if os.environ.get("LABKIT_WATCHING"):
    sys.meta_path.insert(0, Finder())
ours = sys.modules.pop("sitecustomize", None)
try:  # the one that would have been imported without us
    import sitecustomize  # noqa: F401
except ImportError:
    if ours is not None:
        sys.modules["sitecustomize"] = ours
