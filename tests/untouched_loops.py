"""Loops whose every object says when its code runs, and that show their stack: a script.

A watched run has to say the same, in the same order: `test_in_the_script.py` compares.
"""

import collections
import inspect
import random
import sys
import time
import traceback
import warnings
import weakref
from dataclasses import dataclass

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

CASES = {}
LOADERS_MADE = []  # so that each is a loop of its own


def case(function):
    CASES[function.__name__] = function
    return function


def stack(what):
    print(what, [each.function for each in inspect.stack()[1:]], random.random(), flush=True)


def say(what):
    print(what, random.random(), flush=True)


class Telling:
    """Says which code of it runs."""

    def __getattr__(self, name):
        say(f"getattr {name}")
        raise AttributeError(name)

    def __len__(self):
        say("len")
        return 3

    def __eq__(self, other):
        say("eq")
        return False

    def __hash__(self):
        say("hash")
        return 1

    def __bool__(self):
        say("bool")
        return True

    def __repr__(self):
        say("repr")
        return "Telling()"

    def __sizeof__(self):
        say("sizeof")
        return 1

    @property
    def __class__(self):
        say("class")
        return Telling

    @property
    def shape(self):
        say("shape")
        return (3,)

    @property
    def nbytes(self):
        say("nbytes")
        return 3


class TellingMapping(Telling, collections.abc.Mapping):
    def __getitem__(self, key):
        say(f"item {key}")
        return torch.ones(3)

    def __iter__(self):
        say("iter")
        return iter("ab")


class TellingList(list):
    def __len__(self):
        say("len")
        return 1

    def __iter__(self):
        say("iter")
        return iter(())

    def __getitem__(self, key):
        say("item")
        return 1


class TellingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        say(f"torch function {getattr(function, '__name__', function)}")
        return super().__torch_function__(function, types, args, kwargs or {})


@dataclass
class Record:
    x: torch.Tensor

    def __getattribute__(self, name):
        say(f"attribute {name}")
        return super().__getattribute__(name)


BATCHES = {
    "object": lambda x: Telling(),
    "mapping": lambda x: TellingMapping(),
    "list": lambda x: TellingList([x]),
    "tensor": lambda x: x.as_subclass(TellingTensor),
    "dataclass": Record,
}


class Items(Dataset):
    def __getitem__(self, index):
        return torch.ones(4)

    def __len__(self):
        say("len")
        return 12


def batches_of(make):
    def run():
        beside = Telling()
        kept = [Telling()]
        LOADERS_MADE.append(DataLoader(Items(), 3, collate_fn=lambda each: make(torch.stack(each))))
        for batch in LOADERS_MADE[-1]:
            kept.append(beside)
            say(type(batch).__name__)

    return run


for name, make in BATCHES.items():
    CASES[f"batch_{name}"] = batches_of(make)


class Draws(Sampler):
    def __init__(self):
        pass

    def __len__(self):
        say("len of the sampler")
        return 6

    def __iter__(self):
        stack("sampler")
        return iter(range(6))


class Key(Telling):
    pass


class Frozen(DataLoader):
    """Forbids new attributes, and says what it is asked."""

    ready = False

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.__dict__["ready"] = True

    def __setattr__(self, name, value):
        if self.ready:
            raise AttributeError(name)
        super().__setattr__(name, value)

    def __len__(self):
        say("len of the loader")
        return super().__len__()

    def __eq__(self, other):
        say("eq of the loader")
        return self is other

    __hash__ = None


LOADERS = {
    "sampler": lambda: DataLoader(Items(), 2, sampler=Draws()),
    "batch_sampler": lambda: DataLoader(Items(), batch_sampler=BatchSampler(Draws(), 2, False)),
    "keys": lambda: DataLoader(Items(), 2, sampler=[Key() for _ in range(4)]),
    "frozen": lambda: Frozen(Items(), 2),
    "workers": lambda: DataLoader([1, 2, 3], 2, num_workers=1),
}


def loader_like(make):
    def run():
        loader = make()
        LOADERS_MADE.append(loader)
        for _ in range(2):
            for batch in loader:
                stack(type(batch).__name__)

    return run


for name, make in LOADERS.items():
    CASES[f"loader_{name}"] = loader_like(make)


class Fails(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 1:
            warnings.warn("of the caller", stacklevel=2)
        if index == 3:
            raise self.error
        return index


def failing(error, workers=0):
    def run():
        dataset = Fails()
        dataset.error = error
        batches = iter(DataLoader(dataset, 2, num_workers=workers))
        for _ in range(5):
            try:
                print(next(batches))
            except BaseException as caught:
                print(traceback.format_exc())
                print([frame.name for frame in traceback.extract_stack()])
                if isinstance(caught, SystemExit):
                    return

    return run


for kind in (ValueError, StopIteration, KeyboardInterrupt, SystemExit):
    CASES[f"fails_{kind.__name__}"] = failing(kind("mine"))
CASES["fails_in_a_worker"] = failing(ValueError("mine"), 1)


@case
def iterators_are_torchs():
    loader = DataLoader(range(8), 2)
    batches = iter(loader)
    print(
        type(batches), bool(batches), batches is iter(batches), sorted(vars(batches)), len(batches)
    )
    batches.count, batches.stop, batches.on, batches.current = 1, 2, 3, 4
    print(repr(batches).partition(" at ")[0], isinstance(batches, collections.abc.Iterator))
    gone = weakref.ref(batches)
    take = batches.__next__
    print(take(), take(), next(batches), len(list(batches)), next(batches, "over"))
    del batches, take
    print(gone())


@case
def a_class_of_iterators_may_be_derived():
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    class Mine(_SingleProcessDataLoaderIter):
        def __next__(self):
            stack("mine")
            return super().__next__() + 1

    class Loader(DataLoader):
        def _get_iterator(self):
            return Mine(self)

    print([batch.tolist() for batch in Loader(range(5), 2)])


if __name__ == "__main__":
    for name, run in CASES.items():
        random.seed(0), torch.manual_seed(0)
        print(f"=== {name}", flush=True)
        print(f"=== {name}", file=sys.stderr, flush=True)
        try:
            run()
        except Exception:
            traceback.print_exc()
        print(random.random(), torch.rand(1).item(), flush=True)
        time.sleep(0)
