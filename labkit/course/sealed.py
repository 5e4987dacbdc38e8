"""A function or class that somebody else's process pickled: passed on, never opened here."""

from __future__ import annotations

from typing import Any

from labkit.course.confine import unsealed
from labkit.process import folders


class Sealed:
    """Pickled code on its way to the bench, which opens it with everything else out of reach.

    Attributes:
        kind: What it says it is: "function" or "class".
    """

    def __init__(self, data: bytes, kind: str):
        self.data, self.kind = data, kind

    def refuse(self, wanted: str) -> str | None:
        """Why it is not run at all, where the challenge wants a `wanted`; None where it may be."""
        if wanted == "class" and self.kind != "class":
            return f"The answer is a class, this is a {self.kind}."
        return None

    def __reduce__(self) -> Any:
        return unsealed, (self.data, str(folders.home()))
