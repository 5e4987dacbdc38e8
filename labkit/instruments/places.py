"""Where sampled stacks are: a place is described when first met, and has a number from then on."""

from __future__ import annotations

import itertools
from types import CodeType, FrameType
from typing import NamedTuple, TypeAlias

from labkit.instruments import stack
from labkit.instruments.inner_loops import InnerLoop, inner_loop
from labkit.instruments.kinds import SAVES, kind_of_calls, kind_of_line

DATALOADER_PARTS = "torch.utils.data._utils"
DATASETS = "torch.utils.data.dataset"  # of torch's own: a Subset, a TensorDataset
NOT_THE_CAUSE = (DATALOADER_PARTS, "torch.utils.data.dataloader", DATASETS, "labkit.")

Where: TypeAlias = tuple[str, int, str]  # file, line, function


class Place(NamedTuple):
    """What a sampled stack was at; a `lines` event has it once, as a list in this order."""

    kind: str  # of work: "forward", "python", "logging", "io", "wait", ...
    within: str  # "item" or "collate": what a loader was busy with, else ""
    file: str  # of the deepest line of the user's own code
    line: int
    function: str
    call: str  # that line, without the texts in it; of older records, what it was calling
    site: Where | None = None  # where in the loop itself that was
    reads: Where | None = None  # of older records: no longer read
    inner: InnerLoop | None = None  # a loop within the step that it is in


class Stack(NamedTuple):
    """A stack, as far as the loop that is sampled."""

    frames: list[FrameType]  # inside the loop, the deepest first
    loop: FrameType | None  # what iterates the loader
    own: FrameType | None  # the deepest of the user's, which may be the loop


class Places:
    """The places where the stacks of one loop were."""

    def __init__(self):
        self.loop: CodeType | None = None  # what iterates the loader: no deeper goes the stack
        self.framed = False  # a package does, which the user's code called
        self.batch_loop: int | None = None  # the line there that asks for batches
        self.numbers: dict[tuple[object, ...], int] = {}  # {what a stack was: its place's number}
        self.met: set[CodeType] = set()  # and its code
        self.fresh: dict[int, Place] = {}  # places that were not written yet

    def begin(self, frame: FrameType) -> None:
        """Note the loop around `frame`, which has its first batch."""
        if self.loop is None:
            self.loop, self.framed = stack.loop_around(frame)
        loop = self._seen(frame).loop
        self.batch_loop = loop and loop.f_lineno

    def number_of(self, top: FrameType) -> int:
        """Return the number of the place where a stack is, by its deepest frame."""
        seen = self._seen(top)
        key: list[object] = [seen.loop and seen.loop.f_lineno]
        for frame in filter(None, (*seen.frames, seen.loop)):
            key += (id(frame.f_code), frame.f_lasti)  # to hash a code object takes microseconds
            if frame is seen.own:
                break
        place = tuple(key)
        number = self.numbers.get(place)
        if number is None:
            number = len(self.numbers)
            self.numbers[place] = number
            self.met.update(frame.f_code for frame in seen.frames)  # lest another gets its id
            self.fresh[number] = self._place_of(top, seen)
        return number

    def _seen(self, top: FrameType) -> Stack:
        frames: list[FrameType] = []
        at: FrameType | None = top
        while at is not None and at.f_code is not self.loop:
            frames.append(at)
            at = at.f_back
        own = next((each for each in (*frames, at) if each and _is_users(each)), None)
        return Stack(frames, at, own)

    def _place_of(self, top: FrameType, seen: Stack) -> Place:
        """Return the place of a stack: in the user's own code, else in a package's."""
        within, called = _loaders_work(seen.frames)
        kind = _kind(top, seen)
        frame = seen.own
        if frame is None or (frame is seen.loop and (within or self.framed)):
            frame = _in_package(called) or top
            inside = [each for each in called if stack.module_of_frame(each) != DATASETS]
            kind = kind_of_calls(inside or called) or kind
        # A process is often put off its core in the system calls of what records it
        return Place(
            kind="labkit" if stack.is_ours(top.f_code.co_filename) else kind,
            within=within,
            file=frame.f_code.co_filename,
            line=stack.line_of(frame),
            function=stack.name_of(frame.f_code),
            call=stack.text_of(frame),
            site=None if self.framed else _where(seen.loop),
            inner=self._inner(seen),
        )

    def _inner(self, seen: Stack) -> InnerLoop | None:
        """Return the innermost loop within the step, in the user's code that the stack is in."""
        if seen.loop is None:
            return None
        for frame in filter(_is_users, seen.frames):
            if found := inner_loop(frame, None):
                return found
        return None if self.framed else inner_loop(seen.loop, self.batch_loop)


def _loaders_work(frames: list[FrameType]) -> tuple[str, list[FrameType]]:
    """Return "item" or "collate", if a loader is busy with one, and the frames called for it.

    If not, "" and all frames.
    """
    for depth, frame in enumerate(frames):
        module = stack.module_of_frame(frame)
        if module in (f"{DATALOADER_PARTS}.fetch", f"{DATALOADER_PARTS}.collate"):
            collates = "collate" in module or "collate_fn" in stack.text_of(frame)
            return "collate" if collates else "item", frames[:depth]
    return "", frames


def _is_users(frame: FrameType) -> bool:
    """Return whether a frame is of the user's code: what torch.compile has written is none."""
    is_users = stack.is_users(frame.f_code.co_filename)
    return is_users and not stack.module_of_frame(frame).startswith("torch.")


def _where(frame: FrameType | None) -> Where | None:
    if frame is None or not frame.f_lineno:
        return None
    return frame.f_code.co_filename, frame.f_lineno, stack.name_of(frame.f_code)


def _kind(top: FrameType, seen: Stack) -> str:
    """Return the kind of work that a stack is at."""
    own = seen.own
    if own is top:
        return kind_of_line(top)
    kind = kind_of_calls(itertools.takewhile(lambda frame: frame is not own, seen.frames))
    saves = own and kind in ("library", "io") and SAVES.search(stack.text_of(own))
    return "logging" if saves else kind


def _in_package(frames: list[FrameType]) -> FrameType | None:
    """Return the deepest of the frames that is of the package called first; None without one."""
    called = [
        (module.partition(".")[0], frame)
        for frame in frames
        if not (module := stack.module_of_frame(frame)).startswith(NOT_THE_CAUSE)
    ]
    if not called:
        return None
    package, first = called[-1]
    if package in ("", "torch"):
        return first
    return next(frame for inside, frame in called if inside == package)
