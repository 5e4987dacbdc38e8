"""Yield the events of a trace file of unknown origin one by one, in bounded memory and time.

A profiler trace is tens to hundreds of MiB of JSON, of which the reader needs a few numbers per
event. `json.loads` of all of it costs ten times the file in memory and three times the time of this
reader, which slides a window of text over the file and decodes one event after the other.

The file may be anything: a fragment, a picture, a bomb. Every refusal is one `TraceError`.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

MAX_BYTES = 2 * 2**30  # uncompressed: some 5 million events, a minute of reading
MAX_VALUE = 2 * 2**20  # characters of one event; real ones, shapes and stack included, have 100,000
MAX_EVENTS = 10_000_000  # as many as 2 GiB hold of real ones; empty ones cost 1 s a million
MAX_RATIO = 200  # gzip packs real traces 20 to 40 times smaller, a bomb 1,000 times
RATIO_FROM = 16 * 2**20  # uncompressed bytes from which the ratio is looked at
CHUNK = 2**20  # bytes read at a time

KEPT = ("distributedInfo", "deviceProperties")  # what is used of the keys beside the events

_SPACE = re.compile(r"[ \t\n\r]*")
# Kineto has printed these where JSON has no word for the value (a bandwidth over 0 µs, for one).
_BARE = re.compile(r"(?<=[:,\[\s])(?:-?(?:nan|inf)|N/A)(?=[\s,}\]])")
# Numbers stay text: the few that are used are converted with a bound on their size, and a
# timestamp in µs since 1970 with three decimals does not fit a float.
_scan = json.JSONDecoder(strict=False, parse_int=str, parse_float=str, parse_constant=str).scan_once

_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")

EXPORT_AGAIN = "export it again with prof.export_chrome_trace(), and let that finish before copying"
PROFILE_LESS = "profile fewer steps, as with torch.profiler.schedule(wait=2, warmup=2, active=5)"


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file, what is wrong and what to do."""


class TraceFile:
    """The events of a Chrome trace (.json or .json.gz), in file order; iterate over it once.

    Numbers arrive as text, `NaN` and the infinities too. Iterating raises `TraceError` where the
    file cannot be read, is not such a trace, is cut short, or passes one of this module's limits.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.fsdecode(path)
        self.meta: dict[str, Any] = {}  # what it says beside its events, of the keys in `KEPT`
        self.notes: list[str] = []  # what was repaired on the way, as sentences

    def error(self, what: str, remedy: str = EXPORT_AGAIN) -> TraceError:
        """Return the exception for this file: one sentence of name, fault and remedy."""
        return TraceError(f"{self.path!r} {what}: {remedy}.")

    def __iter__(self) -> Iterator[Any]:
        try:
            mode = os.stat(self.path).st_mode
            if not stat.S_ISREG(mode):  # a pipe or a device would block, or never end
                kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
                raise self.error(f"is {kind}", "give the path of one trace file")
            with open(self.path, "rb") as raw:
                window = _Window(self, raw)
                opening = window.token()
                if opening == "[":
                    yield from self._items(window)
                elif opening == "{":
                    yield from self._members(window)
                else:
                    raise self.error("is not a profiler trace, which begins with '[' or '{'")
                if not window.at_end():
                    raise window.syntax_error()
        except TraceError:
            raise
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
            what = f"cannot be read ({getattr(error, 'strerror', None) or error})"
            raise self.error(what, "check the path and the permissions") from None

    def _members(self, window: _Window) -> Iterator[Any]:
        """Walk the outermost object, which has the list of events under a key."""
        found = False
        token = window.token()
        while token != "}":
            if token != '"':
                raise window.syntax_error()
            window.pos -= 1
            key = window.value()
            if window.token() != ":":
                raise window.syntax_error()
            if key == "traceEvents":
                if window.token() != "[":
                    raise self.error("has a 'traceEvents' that is not a list")
                found = True
                yield from self._items(window)
            else:
                window.token()
                window.pos -= 1
                value = window.value()
                if key in KEPT:
                    self.meta[key] = value
            token = window.after_value("}")
        if not found:
            raise self.error("is JSON, but not a profiler trace (it has no 'traceEvents')")

    def _items(self, window: _Window) -> Iterator[Any]:
        count = 0
        token = window.token()
        while token != "]":
            window.pos -= 1
            count += 1
            if count > MAX_EVENTS:
                raise self.error(f"has more than {MAX_EVENTS:,} events", PROFILE_LESS)
            yield window.value()
            token = window.after_value("]")


class _Window:
    """A stretch of the file's text, and the position in it up to which it has been read."""

    def __init__(self, file: TraceFile, raw: BinaryIO):
        self.file = file
        self.raw = raw
        packed = raw.peek(2)[:2] == b"\x1f\x8b"  # the name may lie, the first bytes do not
        self.stream = gzip.GzipFile(fileobj=raw) if packed else raw
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text, self.pos, self.ended = "", 0, False
        self.passed = 0  # characters before `text`
        self.size = 0  # uncompressed bytes so far

    def token(self) -> str:
        """Return the next character that is not white space, and step over it."""
        if self.at_end():
            raise self.cut_short()
        self.pos += 1
        return self.text[self.pos - 1]

    def after_value(self, closing: str) -> str:
        """Step over the comma that follows a value; return what comes then, or `closing`."""
        token = self.token()
        if token == ",":
            return self.token()
        if token != closing:
            raise self.syntax_error()
        return token

    def value(self) -> Any:
        """Decode the JSON value at the position, and step over it."""
        while True:
            cut = False
            try:
                value, end = _scan(self.text, self.pos)
            except StopIteration as error:
                at = error.value
            except json.JSONDecodeError as error:
                at, cut = error.pos, error.msg.startswith("Unterminated string")
            except RecursionError:
                raise self.file.error("is nested too deeply to be a profiler trace") from None
            else:
                # A number that touches the window's end may go on beyond it.
                if end < len(self.text) or not self.more():
                    self.pos = end
                    return value
                continue
            # More text cannot mend an error this far from the window's end: words (-Infinity) and
            # escapes (\ud83d\ude00) are 12 characters at most.
            if (cut or len(self.text) - at <= 16) and self.more():
                continue
            if _BARE.match(self.text, at):
                before = max(self.pos - 1, 0)  # the pattern looks at the character before, too
                self.text = self.text[:before] + _BARE.sub("null", self.text[before:])
                continue
            self.pos, rest = at, self.text[at:]
            cut = cut or any(word.startswith(rest) for word in _WORDS)
            raise self.cut_short() if cut else self.syntax_error()

    def more(self) -> bool:
        """Drop the text already read and add to the rest; return False at the end of the file."""
        rest = self.text[self.pos :]
        if len(rest) >= MAX_VALUE:
            raise self.file.error(f"has an event of more than {MAX_VALUE:,} characters")
        # Doubling keeps the cost of decoding a long event again and again linear.
        piece = b"" if self.ended else self.read(max(CHUNK, len(rest)))
        if not piece:
            if not self.ended and (tail := self.decode(b"", final=True)):
                self.text += tail
            self.ended = True
            return False
        self.passed += self.pos
        self.text, self.pos = rest + self.decode(piece), 0
        return True

    def decode(self, piece: bytes, final: bool = False) -> str:
        try:
            return self.decoder.decode(piece, final)
        except UnicodeDecodeError:
            self.decoder.errors = "replace"
            self.file.notes.append("Text that is not UTF-8 was replaced by question marks.")
            return self.decoder.decode(piece, final)

    def read(self, count: int) -> bytes:
        try:
            piece = self.stream.read(count)
        except EOFError:
            raise self.file.error("is cut short (the compressed data has no end)") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self.file.error(f"is damaged ({error})") from None
        self.size += len(piece)
        if self.size > MAX_BYTES:
            gib = MAX_BYTES / 2**30
            raise self.file.error(f"is larger than {gib:g} GiB uncompressed", PROFILE_LESS)
        if self.size > max(RATIO_FROM, MAX_RATIO * self.raw.tell()):
            what = f"unpacks to more than {MAX_RATIO} times its size, as no profiler trace does"
            raise self.file.error(what)
        return piece

    def at_end(self) -> bool:
        """Return whether only white space is left."""
        while True:
            self.pos = _SPACE.match(self.text, self.pos).end()
            if self.pos < len(self.text):
                return False
            if not self.more():
                return True

    def cut_short(self) -> TraceError:
        if not self.passed + len(self.text.strip()):
            return self.file.error("is empty")
        return self.file.error(f"is cut short at character {self.passed + self.pos:,}")

    def syntax_error(self) -> TraceError:
        return self.file.error(f"is not valid JSON near character {self.passed + self.pos:,}")
