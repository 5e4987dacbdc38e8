"""The causes of lost device time, a function each; importing them registers them."""

from labkit.diagnosis.causes import (  # noqa: F401 - they are asked in this order
    body,
    device,
    loader,
)
