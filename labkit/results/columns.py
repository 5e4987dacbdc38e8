"""Tables of columns: dataclasses whose fields are arrays of one length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Columns:
    """The base of such a table; one of its columns is `start`."""

    start: np.ndarray  # when each batch was begun, s on the run's clock

    def __len__(self) -> int:
        return len(self.start)

    def only(self, keep: np.ndarray) -> Self:
        """Return the rows where the mask `keep` is true."""
        return type(self)(**{name: column[keep] for name, column in vars(self).items()})
