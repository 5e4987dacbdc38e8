"""Traces that others published, as files: fetched once, then read without the network.

They lie in their authors' repositories, at a pinned commit; one is accepted with its SHA-256 alone,
and kept in the cache. A folder may take the network's place: $LABKIT_TRACES.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from labkit.process.folders import home
from labkit.stamps.folder_rights import own_folder, private
from labkit.stamps.plain_file import opened
from labkit.text import printable

SITE = "https://raw.githubusercontent.com"
TIMEOUT_S = 20
MAX_BYTES = 256 * 2**20  # ten times the largest: of more, the SHA-256 is another
NOT_FETCHED = (OSError, http.client.HTTPException)  # no network, among others


class AnotherFile(ValueError):
    """What came is not the file that was published."""


@dataclass(frozen=True, repr=False)
class PublicFile:
    """A file of a public repository."""

    repository: str  # at `SITE`
    commit: str
    path: str
    file: str  # its name in $LABKIT_TRACES and in the cache
    sha256: str
    copies: list[str]  # SHA-256 of copies that lack only metadata

    @property
    def here(self) -> Path | None:
        """The file in the user's folder or the cache; None where no file there is it."""
        folder = os.environ.get("LABKIT_TRACES")
        found = Path(folder).rglob(self.file) if folder else ()
        for path in (*found, self._cached):
            with contextlib.suppress(OSError), opened(path) as file:
                digest = hashlib.sha256(file.read(MAX_BYTES)).hexdigest()
                if digest in (self.sha256, *self.copies):
                    return path
        return None

    def fetched(self) -> Path:
        """Fetch it into the cache; a file that is not the one is not kept.

        One of `NOT_FETCHED` where it cannot be fetched, AnotherFile where another one came.
        """
        url = f"{SITE}/{self.repository}/{self.commit}/{self.path}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                content = answer.read(MAX_BYTES)
        except urllib.error.HTTPError as refused:
            refused.close()
            raise
        if content.lstrip()[:1] == b"<":
            raise OSError("a web page came in its place: does this network ask for a login?")
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise AnotherFile(
                f"{url} is not the file that was published: its SHA-256 is {digest}, not "
                f"{self.sha256}. Nothing was kept; try again, or get {self.file!r} from somebody "
                "you trust and set LABKIT_TRACES to its folder."
            )
        path = self._cached
        with open(path, "wb", opener=private) as file:  # cut short, it is not believed: see `here`
            file.write(content)
        return path

    def not_fetched(self, why: Exception) -> str:
        """Return in words why it was not fetched, and the remedy."""
        told = why if isinstance(why, urllib.error.HTTPError) else getattr(why, "reason", why)
        reason = printable(" ".join(f"{type(why).__name__}: {told}".split()))
        return (
            f"The trace was not fetched ({reason}): connect to the network, or set "
            f"LABKIT_TRACES to a folder with {self.file!r} in it."
        )

    @property
    def _cached(self) -> Path:
        return own_folder(home() / "traces") / f"{self.sha256[:12]}-{self.file}"
