"""Where sampled stacks are: a place is described when first met, and has a number from then on."""

from __future__ import annotations

import itertools
import threading
from types import CodeType, FrameType
from typing import NamedTuple, TypeAlias

from labkit.bench import kinds, stack
from labkit.bench.gpu_waits import wait_for_gpu

DATALOADER = "torch.utils.data.dataloader"
DATALOADER_PARTS = "torch.utils.data._utils"
NOT_THE_CAUSE = (DATALOADER_PARTS, DATALOADER, "labkit.")
IN_MODEL = "torch.nn.modules.module"
OPTIMIZERS = "torch.optim.optimizer"
DECORATORS = "torch.utils._contextlib"  # of `step`, as @torch.no_grad() is
# What these do in a forward records no gradients, and is no validation: what torch.compile made
# and a `Function` of somebody's own run in the second, FSDP gathers weights in the third
GRAD_OFF = ("torch.utils.checkpoint", "torch.autograd.function", "torch.distributed")
OWN_UPDATE = ("python", "torch", "library", "forward")  # what updates of weights are made of

Where: TypeAlias = tuple[str, int, str]  # file, line, function


class Place(NamedTuple):
    """What a sampled stack was at; a `lines` event has it once, as a list in this order."""

    kind: str  # of work: "forward", "python", "logging", "io", "wait", ...
    within: str  # "item" or "collate": what a loader was busy with, else ""
    file: str  # of the deepest line of the user's own code
    line: int
    function: str
    call: str  # what that line was calling
    site: Where | None  # where in the loop itself that was
    reads: Where | None = None  # where a DataLoader is read, if one is


class Stack(NamedTuple):
    """A stack, as far as the loop that is sampled."""

    frames: list[FrameType]  # inside the loop, the deepest first
    loop: FrameType | None  # what iterates the loader
    own: FrameType | None  # the deepest of the user's, which may be the loop
    grad: bool  # whether gradients are recorded


class Places:
    """The places where the stacks of one loop were."""

    def __init__(self, collate: object):
        """`collate` is the loader's collate function."""
        self.collate = stack.place_of(collate)
        self.loop: CodeType | None = None  # what iterates the loader: no deeper goes the stack
        self.framed = False  # a package does, which the user's code called
        self.numbers: dict[tuple[object, ...], int] = {}  # {what a stack was: its place's number}
        self.met: set[CodeType] = set()  # and its code
        self.fresh: dict[int, Place] = {}  # places that were not written yet
        self.without_grad: set[tuple[int, ...]] = set()  # lines that recorded no gradients

    def number_of(self, top: FrameType, is_late: bool = False) -> int:
        """Return the number of the place where a stack is, by its deepest frame.

        `is_late` where the thread may have been in C code before it, and has come to it since.
        """
        is_late = is_late and stack.is_gpu_in_use()
        seen = self._seen(top)
        key: list[object] = [is_late, seen.grad, seen.loop and seen.loop.f_lineno]
        last = top.f_back if is_late and seen.own is top else seen.own
        for frame in filter(None, (*seen.frames, seen.loop)):
            key += (id(frame.f_code), frame.f_lasti)  # to hash a code object takes microseconds
            if frame is last:
                break
        place = tuple(key)
        number = self.numbers.get(place)
        if number is None:
            number = len(self.numbers)
            self.numbers[place] = number
            self.met.update(frame.f_code for frame in seen.frames)  # lest another gets its id
            self.fresh[number] = self._described(top, seen, is_late)
        return number

    def _seen(self, top: FrameType) -> Stack:
        frames: list[FrameType] = []
        at: FrameType | None = top
        while at is not None and at.f_code is not self.loop:
            frames.append(at)
            at = at.f_back
        users = [each for each in (*frames, at) if each and _is_users(each)]
        return Stack(frames, at, users[0] if users else None, self._records_gradients(users))

    def _records_gradients(self, users: list[FrameType]) -> bool:
        """Return whether the main thread records gradients, in the user's frames that it is in.

        PyTorch tells that in the thread itself alone; another one has what it last said there.
        """
        lines = tuple(number for each in users for number in (id(each.f_code), each.f_lineno or 0))
        if threading.current_thread() is not threading.main_thread():
            return lines not in self.without_grad
        if stack.is_grad_on():
            self.without_grad.discard(lines)
            return True
        self.without_grad.add(lines)
        return False

    def _described(self, top: FrameType, seen: Stack, is_late: bool) -> Place:
        wait = wait_for_gpu(top, is_late)
        if wait is not None and wait.frame in (*seen.frames, seen.loop):
            top = wait.frame
            seen = self._seen(top)
        else:
            wait = None
        own = seen.own
        found = [self._within(frame) for frame in seen.frames]
        within = next(filter(None, found), "")
        kind, call = _work(top, seen)
        where = own or top
        if own is None or (own is seen.loop and (within or self.framed)):
            below = seen.frames  # what the loop called, or the loader
            if within:
                below = below[: found.index(within)]
            where = _in_package(below) or top
            kind = kinds.kind_of_calls(below) or kind
            if kind == "library" and where is top:
                kind = kinds.kind_of_torch_call(top) or kind
            call = kinds.call_text(kinds.expression(where))
        file = where.f_code.co_filename
        if top.f_code.co_filename in stack.RECORDERS:
            kind = "labkit"  # a process is often put off a core in its system calls
        line = stack.line_of(where)
        function = stack.name_of(where.f_code)
        site = None if self.framed else _where(seen.loop)
        if wait is not None:
            kind = "sync"
            if where is top:
                line, call = wait.line, wait.text
        return Place(kind, within, file, line, function, call, site, _reads(seen))

    def _within(self, frame: FrameType) -> str:
        module = stack.module_of_frame(frame)
        here = frame.f_code.co_filename, frame.f_code.co_firstlineno
        if module == f"{DATALOADER_PARTS}.collate" or here == self.collate:
            return "collate"
        return "item" if module == f"{DATALOADER_PARTS}.fetch" else ""


def _is_users(frame: FrameType) -> bool:
    """Return whether a frame is of the user's code: what torch.compile has written is none."""
    is_users = stack.is_users(frame.f_code.co_filename)
    return is_users and not stack.module_of_frame(frame).startswith("torch.")


def _where(frame: FrameType | None) -> Where | None:
    if frame is None or not frame.f_lineno:
        return None
    return frame.f_code.co_filename, frame.f_lineno, stack.name_of(frame.f_code)


def _reads(seen: Stack) -> Where | None:
    """Return where the user's code reads the outermost DataLoader; None where it reads none."""
    found = None
    is_read = False
    for frame in filter(None, (*seen.frames, seen.loop)):
        if stack.module_of_frame(frame) == DATALOADER:
            is_read = True
        elif is_read and stack.is_users(frame.f_code.co_filename):
            found = _where(frame)
            is_read = False
    return found


def _work(top: FrameType, seen: Stack) -> tuple[str, str]:
    """Return the kind of work that a stack is at, and what the user's line was calling."""
    own = seen.own
    if own is top:
        kind, call = kinds.kind_and_call(top)
    else:
        libraries = itertools.takewhile(lambda frame: frame is not own, seen.frames)
        kind = kinds.kind_of_calls(libraries)
        call = kinds.call_text(own and kinds.expression(own))
        if kind in ("library", "io") and kinds.SAVES.search(call):
            kind = "logging"
    modules = {stack.module_of_frame(frame) for frame in seen.frames}
    if own is not None and kind in OWN_UPDATE and IN_MODEL not in modules:
        is_loop = own is seen.loop
        if (_in_own_step(seen) and not is_loop) or kinds.updates_weights(own, is_loop):
            return "update", call
    in_model = IN_MODEL in modules and kind in ("forward", "torch", "library")
    if in_model and not seen.grad and not any(each.startswith(GRAD_OFF) for each in modules):
        kind = "validation"
    return kind, call


def _in_own_step(seen: Stack) -> bool:
    """Return whether the code is an optimizer's of the user: no library is between it and `step`.

    A closure that PyTorch's own optimizer calls, as Lightning's whole step is, is none.
    """
    around = itertools.dropwhile(lambda frame: frame is not seen.own, seen.frames)
    for frame in around:
        module = stack.module_of_frame(frame)
        if module == OPTIMIZERS:
            return True
        if not stack.is_users(frame.f_code.co_filename) and module != DECORATORS:
            return False
    return False


def _in_package(frames: list[FrameType]) -> FrameType | None:
    """Return the deepest of the frames that is of the package called first; None without one."""
    called: list[tuple[str, FrameType]] = []
    for frame in frames:
        module = stack.module_of_frame(frame)
        if not module.startswith(NOT_THE_CAUSE):
            called.append((module.partition(".")[0], frame))
    if not called:
        return None
    package, first = called[-1]
    if package in ("", "torch"):
        return first
    for inside, frame in called:
        if inside == package and frame.f_code.co_name != "__torch_function__":
            return frame
    return None
