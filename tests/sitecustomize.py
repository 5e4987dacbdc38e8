"""In every Python that a test starts: torch's compiler is imported once something compiles.

An optimizer imports it as soon as it is made, to keep it away: a second, in hundreds of processes
that compile nothing. Here it gets a stand-in, which knows that much; for more the compiler comes.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

COMPILER = "torch._dynamo"
ASKS_FOR_LITTLE = ("torch/_compile.py", "torch/optim/optimizer.py")


class Asleep(ModuleType):
    """The compiler while nothing is traced: what it shall not trace stays as it is."""

    __path__ = ()

    @staticmethod
    def disable(fn, *_how, **_more):
        return fn

    @staticmethod
    def graph_break():
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(awake(COMPILER), name)


def awake(name):
    """Return a module of the compiler, which takes the place of its stand-in."""
    if isinstance(sys.modules.get(COMPILER), Asleep):
        del sys.modules[COMPILER]
    return importlib.import_module(name)


class There:
    """Loads a module that is there already."""

    def __init__(self, module):
        self.module = module
        self.spec = module.__spec__

    def create_module(self, _spec):
        return self.module

    def exec_module(self, module):
        module.__spec__ = self.spec


class StandIn:
    """Finds the stand-in where an optimizer asks for the compiler, and wakes it for others."""

    @staticmethod
    def find_spec(name, _path=None, _target=None):
        if name == COMPILER and importer().endswith(ASKS_FOR_LITTLE):
            return ModuleSpec(name, There(Asleep(name)))
        is_asleep = isinstance(sys.modules.get(COMPILER), Asleep)
        if is_asleep and name.startswith(f"{COMPILER}."):
            return ModuleSpec(name, There(awake(name)))
        return None


def importer():
    """Return the file of the code that imports."""
    frame = sys._getframe(2)
    while "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_filename


sys.meta_path.insert(0, StandIn)
