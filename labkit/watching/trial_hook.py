"""Tries a change on a script that knows nothing of it: in the script's own process.

`labkit tune -- python train.py` starts the script once for each trial, with an `Order` in
$LABKIT_TRIAL. The loader that feeds its training loop is then made with other arguments, or hands
out its first batches again and again. After some seconds of steady steps the script is interrupted,
as by a Ctrl-C, and what was seen lies in the trial's folder.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, TypedDict

from labkit.instruments.stack import is_users
from labkit.knobs import Settings
from labkit.spec import LOADER_KNOBS, WITHOUT_WORKERS
from labkit.stamps.interrupts import OwnErrors

if TYPE_CHECKING:
    import torch

ORDER = "order.json"  # an `Order`, in the trial's folder
SEEN = "seen-{}.json"  # a `Seen`, there too; the number is that of the process
KEPT_BATCHES = 8  # that ready batches consist of
WARM_STEPS = 3  # after what the queue held at the start
LONGEST_WARM_S = 5.0
WITHOUT_LOADER = 50  # steps of the optimizer before any DataLoader: the script needs none
FEWEST_STEPS = 30  # in the window; with fewer, a rate is a guess
LONGEST_S = 4.0  # times `seconds` that a window may take to have that many
EARLY_S = 1.0  # of steady steps, after which one that is clearly worse is ended
NEEDS_WORKERS = ("timeout", "multiprocessing_context")


class Order(TypedDict):
    """What one trial is to do."""

    site: str | None  # "file:line" of the loader to change; None: only look
    changes: Settings  # its other arguments
    ready: bool  # whether its first batches are handed out again and again
    seconds: float  # of steady steps
    epochs: bool | None  # whether to measure whole epochs; None: where one ends within the window
    floor: float | None  # batches/s, of which half is clearly worse


class Seen(TypedDict):
    """What one trial saw."""

    site: str  # "file:line" where the loader of the training loop is made; "" without one
    loader: dict[str, object]  # its arguments, by name
    batches: int  # that the loop took in the window
    seconds: float  # that the window took
    wait: float  # share of it in which the loop waited for a batch
    longest_wait_s: float
    steps: int  # of the optimizer, in all
    epochs: bool  # whether the window is made of whole epochs
    world: int  # processes that train together
    ended: str  # "window", "slow", "no loader" or "over": the script ended by itself


class Site:
    """A place in the code where loaders are made, and what its loaders did."""

    def __init__(self, name: str):
        self.name = name
        self.settings: dict[str, Any] = {}
        self.kept: list[object] | None = None  # batches, once they are ready
        self.steps = 0  # of the optimizer, on a batch of one of its loaders


class Window:
    """The stretch of a training loop that is timed; times are s of the host's clock."""

    def __init__(self, order: Order):
        self.order = order
        self.skip = WARM_STEPS  # batches, before it begins
        self.epochs = order["epochs"]
        self.taken = 0
        self.first_s = 0.0  # when the first batch came
        self.begin(None)

    def begin(self, now_s: float | None) -> None:
        """Start to count; None: not yet."""
        self.began_s = now_s
        self.last_s = now_s or 0.0  # until when it counts
        self.batches = 0
        self.waited_s = 0.0
        self.longest_s = 0.0
        self.elsewhere_s = 0.0  # in other loaders' loops, validation for instance

    def new_epoch(self, now_s: float) -> None:
        """Note that the loop starts over; whole epochs are timed from here to where it does again.

        Where nobody said whether to, an epoch that ends before the window does decides it.
        """
        if self.epochs is None:
            self.epochs = True
            self.began_s = None
        if self.epochs and self.began_s is None:
            self.begin(now_s)

    def took(self, asked_s: float, now_s: float) -> None:
        """Count a batch for which the loop waited from `asked_s` on."""
        self.taken += 1
        self.first_s = self.first_s or now_s
        if self.began_s is not None:
            self.batches += 1
            self.waited_s += now_s - asked_s
            self.longest_s = max(self.longest_s, now_s - asked_s)
        elif not self.epochs and (self.taken > self.skip or now_s - self.first_s > LONGEST_WARM_S):
            self.begin(now_s)

    @property
    def seconds(self) -> float:
        """How long it has counted; 0 before it began."""
        if self.began_s is None:
            return 0.0
        return max(0.0, self.last_s - self.began_s - self.elsewhere_s)

    def is_over(self, at_epoch: bool) -> str:
        """Return why to stop here: "window" or "slow"; "" to go on."""
        seconds = self.seconds
        if not self.batches or not seconds:
            return ""
        floor = self.order["floor"]
        if floor and seconds > EARLY_S and self.batches / seconds < floor / 2:
            return "slow"
        wanted_s = self.order["seconds"]
        if self.epochs:
            is_over = at_epoch and seconds >= wanted_s
        elif self.batches >= FEWEST_STEPS:
            is_over = seconds >= wanted_s or (at_epoch and self.epochs is False)
        else:
            is_over = seconds > LONGEST_S * wanted_s
        return "window" if is_over else ""


class TriedScript:
    """The training loop of this process: what is changed in it, and what is seen of it."""

    def __init__(self, order: Order, folder: Path):
        self.order = order
        self.folder = folder
        self.pid = os.getpid()
        self.sites: dict[str, Site] = {}
        self.of_datasets: dict[int, tuple[Site, object]] = {}  # by their ids; kept, so none is new
        self.now_in: Site | None = None  # whose batch came last
        self.training: Site | None = None  # whose batches the optimizer's steps are on
        self.window = Window(order)
        self.left_s: float | None = None  # when another loader's loop began
        self.optimizer: int | None = None  # id of the first one that made a step
        self.steps = 0
        self.ended = ""

    def install(self, module: ModuleType) -> None:
        """Hook torch's module of loaders, or of optimizers, when it has just been loaded."""
        if hasattr(module, "DataLoader"):
            self._hook_loaders(module.DataLoader)
        else:
            module.register_optimizer_step_post_hook(
                sys.modules["torch"]._disable_dynamo(lambda *given: self.stepped(*given))
            )

    def _hook_loaders(self, kind: Any) -> None:
        make, iterate = kind.__init__, kind.__iter__
        signature = inspect.signature(make)

        @functools.wraps(make)
        def made(loader: Any, /, *args: Any, **kwargs: Any) -> None:
            site = None
            with OwnErrors():
                bound = signature.bind(loader, *args, **kwargs)
                site = self.site_of(sys._getframe(1), loader, bound.arguments["dataset"])
                if self.order["site"] == site.name:
                    args, kwargs = with_changes(bound, self.order["changes"])
            make(loader, *args, **kwargs)
            if site is not None:
                site.settings = {name: getattr(loader, name, None) for name in LOADER_KNOBS}
                loader._labkit_site = site

        @functools.wraps(iterate)
        def iterated(loader: Any) -> Iterator[object]:
            site = getattr(loader, "_labkit_site", None)
            if site is None or os.getpid() != self.pid:
                return iterate(loader)
            asked_s = self.asks(site, new=True)
            is_ready = self.order["ready"] and self.order["site"] == site.name
            batches = ready(site, loader, iterate) if is_ready else iterate(loader)
            return self.handed_out(site, batches, asked_s)

        kind.__init__, kind.__iter__ = made, iterated

    def site_of(self, frame: FrameType | None, loader: object, dataset: object) -> Site:
        """Return where a loader is made: the first line that is not its own class's.

        A library makes loaders of the script's, those for training and for validation on the same
        line: there the dataset tells which it is.
        """
        while frame is not None and (
            frame.f_globals.get("__name__", "").startswith("torch.utils.data")
            or (frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is loader)
        ):
            frame = frame.f_back
        name = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        if frame is not None and not is_users(frame.f_code.co_filename):
            if id(dataset) in self.of_datasets:
                return self.of_datasets[id(dataset)][0]
            name += f" (dataset {len(self.of_datasets) + 1})"
        site = self.sites.setdefault(name, Site(name))
        self.of_datasets[id(dataset)] = (site, dataset)
        return site

    def handed_out(self, site: Site, batches: Iterator[object], asked_s: float) -> Iterator[object]:
        """Yield batches, of which the first was asked for at `asked_s`, and note each."""
        for batch in batches:
            self.now_in = site
            if site is self.training:
                self.window.took(asked_s, time.perf_counter())
            yield batch
            asked_s = self.asks(site)

    def asks(self, site: Site, new: bool = False) -> float:
        """Note that a loader is asked for a batch, or (`new`) for all of them; return the time."""
        now_s = time.perf_counter()
        if site is not self.training:
            self.left_s = self.left_s or now_s
            return now_s
        if self.left_s is not None:
            self.window.elsewhere_s += now_s - self.left_s
            self.left_s = None
        if new:
            self._stop_if_over(at_epoch=True)
            self.window.new_epoch(now_s)
        return now_s

    def stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note that an optimizer has made a step; torch calls this."""
        self.optimizer = self.optimizer or id(optimizer)
        if self.optimizer != id(optimizer) or os.getpid() != self.pid:
            return
        self.steps += 1
        site = self.now_in
        if site is None:
            if self.steps == WITHOUT_LOADER:
                self.stop("no loader")
            return
        site.steps += 1
        if self.training is None and site.steps == WARM_STEPS:
            self._begin(site)
        if site is self.training:
            self._stop_if_over(at_epoch=False)

    def _begin(self, site: Site) -> None:
        self.training = site
        self.left_s = None
        if site.kept is None:
            workers = site.settings.get("num_workers") or 0
            self.window.skip += workers * (site.settings.get("prefetch_factor") or 0)

    def _stop_if_over(self, at_epoch: bool) -> None:
        self.window.last_s = time.perf_counter()
        if why := self.window.is_over(at_epoch):
            cuda = sys.modules["torch"].cuda
            if cuda.is_initialized():  # the host runs ahead
                cuda.synchronize()
                self.window.last_s = time.perf_counter()
            self.stop(why)

    def stop(self, why: str) -> None:
        """Interrupt the script, once."""
        if not self.ended:
            self.write(why)
            raise KeyboardInterrupt

    def write(self, why: str = "over") -> None:
        """Leave what was seen in the folder, once, where this process trains."""
        if self.ended or os.getpid() != self.pid or not self.steps:
            return
        self.ended = why
        site = self.training or Site("")
        window = self.window
        seen = Seen(
            site=site.name,
            loader=site.settings,
            batches=window.batches,
            seconds=window.seconds,
            wait=window.waited_s / (window.seconds or 1),
            longest_wait_s=window.longest_s,
            steps=self.steps,
            epochs=bool(window.epochs),
            world=int(os.environ.get("WORLD_SIZE", "1")),
            ended=why,
        )
        half = self.folder / f"half-{self.pid}"
        half.write_text(json.dumps(seen, default=str), encoding="utf-8")
        half.replace(self.folder / SEEN.format(self.pid))


def install(module: ModuleType, folder: str) -> None:
    """Hook a module of torch's, as the trial in `folder` asks for."""
    _tried(folder).install(module)


@functools.cache  # once
def _tried(folder: str) -> TriedScript:
    """Return the one training loop of this process."""
    order: Order = json.loads(Path(folder, ORDER).read_text(encoding="utf-8"))
    tried = TriedScript(order, Path(folder))
    atexit.register(tried.write)
    return tried


def ready(site: Site, loader: Any, iterate: Callable[[Any], Iterator[object]]) -> Iterator[object]:
    """Return the first batches again and again, as many as the loader would have."""
    if site.kept is None:
        site.kept = list(itertools.islice(iterate(loader), KEPT_BATCHES))
        loader._iterator = None  # ends workers that are kept
    again = itertools.cycle(site.kept)
    try:
        return itertools.islice(again, len(loader))
    except TypeError:  # a stream of unknown length
        return again


def with_changes(
    bound: inspect.BoundArguments, changes: Settings
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a DataLoader, itself left out, with others in their place.

    Without workers, those that need some are left out.
    """
    bound.arguments.update(changes)
    if not bound.arguments.get("num_workers"):
        for name in (*WITHOUT_WORKERS, *NEEDS_WORKERS):
            bound.arguments.pop(name, None)
    return bound.args[1:], bound.kwargs
