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

from labkit.bench.stack import is_users
from labkit.knobs import Settings
from labkit.process.interrupts import OwnErrors
from labkit.spec import LOADER_KNOBS, WITHOUT_WORKERS

if TYPE_CHECKING:
    import torch

ORDER = "order.json"  # an `Order`, in the trial's folder
SEEN = "seen-{}.json"  # a `Seen`, there too; the number is that of the process
KEPT_BATCHES = 8  # that ready batches consist of
LOSSES = 5  # of the first steps, that are compared
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
    torch_threads: int | None  # of the script's own process; None: as it is
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
    losses: list[float]  # of the first backward passes
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

    def __init__(self, order: Order, in_flight: int):
        self.order = order
        self.skip = in_flight + WARM_STEPS  # batches
        self.epochs = order["epochs"]
        self.first_s = 0.0  # when the first batch came
        self.last_s = 0.0  # when the optimizer's last step was over
        self.taken = 0
        self.began_s: float | None = None
        self.batches = 0
        self.waited_s = 0.0
        self.longest_s = 0.0
        self.elsewhere_s = 0.0  # in other loaders' loops, validation for instance

    def begin(self, now_s: float) -> None:
        """Start to count."""
        self.began_s = now_s
        self.batches = 0
        self.waited_s = self.longest_s = self.elsewhere_s = 0.0

    def new_epoch(self, now_s: float) -> None:
        """Note that the loop starts over; whole epochs are timed from here to where it does again.

        Where nobody said whether to, an epoch that ends before the window does decides it. Where
        parts of epochs are timed, it warms up again.
        """
        if self.epochs is None:
            self.epochs = True
            self.began_s = None
        if not self.epochs:
            self.taken, self.first_s, self.began_s = 0, 0.0, None
        elif self.began_s is None:
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

    def seconds(self, now_s: float) -> float:
        """Return how long it has counted; 0 before it began."""
        return 0.0 if self.began_s is None else now_s - self.began_s - self.elsewhere_s

    def is_over(self, now_s: float, at_epoch: bool) -> str:
        """Return why to stop here: "window" or "slow"; "" to go on."""
        if at_epoch and self.epochs is False:
            return "window" if self.batches >= FEWEST_STEPS else ""
        seconds = self.seconds(now_s)
        if not self.batches or seconds <= 0:
            return ""
        floor = self.order["floor"]
        wanted_s = self.order["seconds"]
        if floor and seconds > EARLY_S and self.batches / seconds < floor / 2:
            return "slow"
        if self.epochs:
            return "window" if at_epoch and seconds >= wanted_s else ""
        enough = self.batches >= FEWEST_STEPS or seconds > LONGEST_S * wanted_s
        return "window" if seconds >= wanted_s and enough else ""


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
        self.window: Window | None = None
        self.left_s: float | None = None  # when another loader's loop began
        self.optimizer: int | None = None  # id of the first one that made a step
        self.steps = 0
        self.losses: list[float] = []
        self.ended = ""

    def install(self, module: ModuleType) -> None:
        """Hook torch's module of loaders, or of optimizers, when it has just been loaded."""
        if hasattr(module, "_BaseDataLoaderIter"):
            self._hook_loaders(module)
        else:
            torch = sys.modules["torch"]
            module.register_optimizer_step_post_hook(
                torch._disable_dynamo(lambda *given: self.stepped(*given))
            )
            self._hook_backward()

    def _hook_loaders(self, module: ModuleType) -> None:
        kind = module.DataLoader
        make, iterate, ask = kind.__init__, kind.__iter__, module._BaseDataLoaderIter.__next__
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
            self.goes_on(site, new=True)
            if self.order["ready"] and self.order["site"] == site.name:
                return self.ready(site, loader, lambda: iterate(loader))
            batches = iterate(loader)
            batches._labkit_site = site
            return batches

        @functools.wraps(ask)
        def asked(batches: Any) -> object:
            site = getattr(batches, "_labkit_site", None)
            if site is None:
                return ask(batches)
            asked_s = self.goes_on(site)
            batch = ask(batches)
            self.took(site, asked_s)
            return batch

        kind.__init__, kind.__iter__ = made, iterated
        module._BaseDataLoaderIter.__next__ = asked

    def _hook_backward(self) -> None:
        """Read the losses of the first backward passes."""
        autograd = sys.modules["torch"].autograd
        plain: Callable[..., None] = autograd.backward

        @functools.wraps(plain)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            with OwnErrors():
                if getattr(tensors, "ndim", None) == 0:
                    self.losses.append(float(tensors.detach()))
                if len(self.losses) >= LOSSES:
                    autograd.backward = plain
            plain(tensors, *args, **kwargs)

        autograd.backward = backward

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

    def ready(
        self, site: Site, loader: Any, iterate: Callable[[], Iterator[object]]
    ) -> Iterator[object]:
        """Hand out the first batches again and again, as many as the loader would."""
        if site.kept is None:
            site.kept = list(itertools.islice(iterate(), KEPT_BATCHES))
            loader._iterator = None  # ends workers that are kept
        try:
            count = itertools.repeat(None, len(loader))
        except TypeError:  # a stream of unknown length
            count = itertools.repeat(None)
        for batch, _ in zip(itertools.cycle(site.kept), count, strict=False):
            asked_s = self.goes_on(site)
            self.took(site, asked_s)
            yield batch

    def goes_on(self, site: Site, new: bool = False) -> float:
        """Note that a loader is asked for a batch, or (`new`) for all of them; return the time."""
        now_s = time.perf_counter()
        if self.window is None or os.getpid() != self.pid:
            return now_s
        if site is not self.training:
            self.left_s = self.left_s or now_s
            return now_s
        if self.left_s is not None:
            self.window.elsewhere_s += now_s - self.left_s
            self.left_s = None
        if new:
            self._stop_if_over(now_s, at_epoch=True)
            self.window.new_epoch(now_s)
        return now_s

    def took(self, site: Site, asked_s: float) -> None:
        """Note that a batch has come."""
        self.now_in = site
        if self.window is not None and site is self.training:
            self.window.took(asked_s, time.perf_counter())

    def stepped(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        """Note that an optimizer has made a step; torch calls this."""
        self.optimizer = self.optimizer or id(optimizer)
        if self.optimizer != id(optimizer) or os.getpid() != self.pid:
            return
        self.steps += 1
        site = self.now_in
        if site is None and self.steps == WITHOUT_LOADER:
            self.write("no loader")
            raise KeyboardInterrupt
        if site is None or self.ended:
            return
        site.steps += 1
        if self.training is None and site.steps == WARM_STEPS:
            self._begin(site)
        if self.window is not None and site is self.training:
            self.window.last_s = time.perf_counter()
            self._stop_if_over(self.window.last_s, at_epoch=False)

    def _begin(self, site: Site) -> None:
        self.training = site
        workers = site.settings.get("num_workers") or 0
        queued = workers * (site.settings.get("prefetch_factor") or 0)
        self.window = Window(self.order, 0 if site.kept else queued)
        if self.order["torch_threads"]:
            sys.modules["torch"].set_num_threads(self.order["torch_threads"])

    def _stop_if_over(self, now_s: float, at_epoch: bool) -> None:
        assert self.window is not None
        if self.ended or not (why := self.window.is_over(now_s, at_epoch)):
            return
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized():
            cuda.synchronize()
        self.write(why)
        raise KeyboardInterrupt

    def write(self, why: str = "over") -> None:
        """Leave what was seen in the folder, once, where this process trains."""
        if self.ended or os.getpid() != self.pid or not self.steps:
            return
        self.ended = why
        window, site = self.window, self.training
        at_epoch = window is not None and window.epochs and why == "window"
        end_s = time.perf_counter() if at_epoch or window is None else window.last_s
        seconds = max(0.0, window.seconds(end_s)) if window else 0.0
        seen = Seen(
            site=site.name if site else "",
            loader=site.settings if site else {},
            batches=window.batches if window else 0,
            seconds=seconds,
            wait=window.waited_s / seconds if window and seconds else 0.0,
            longest_wait_s=window.longest_s if window else 0.0,
            steps=self.steps,
            epochs=bool(window and window.epochs),
            losses=self.losses,
            world=int(os.environ.get("WORLD_SIZE", "1")),
            ended=why,
        )
        half = self.folder / f"half-{self.pid}"
        half.write_text(json.dumps(seen, default=str), encoding="utf-8")
        half.replace(self.folder / SEEN.format(self.pid))


def install(module: ModuleType, folder: str) -> None:
    """Hook a module of torch's, as the trial in `folder` asks for."""
    tried = _TRIED.get(folder)
    if tried is None:
        order: Order = json.loads(Path(folder, ORDER).read_text(encoding="utf-8"))
        tried = _TRIED[folder] = TriedScript(order, Path(folder))
        atexit.register(tried.write)
    tried.install(module)


_TRIED: dict[str, TriedScript] = {}  # the one of this process, by its folder


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
