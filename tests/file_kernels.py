"""Kernels that talk over files, for tests that run side by side.

`jupyter_client` finds free TCP ports, lets go of them, and hands their numbers to the kernel: by
then another process may have one of them, and the kernel never answers
(https://github.com/jupyter/jupyter_client/issues/487).
"""

import os
import tempfile
from pathlib import Path

from jupyter_client import KernelManager
from traitlets import CaselessStrEnum

FOLDER = tempfile.TemporaryDirectory(prefix="kernels-")  # of sockets; their paths must be short


class FileKernelManager(KernelManager):
    """A KernelManager whose kernel listens on sockets in a folder of its own, where there are."""

    transport = CaselessStrEnum(
        ["tcp", "ipc"], default_value="ipc" if os.name == "posix" else "tcp", config=True
    )

    def _ip_default(self):
        if self.transport == "tcp":
            return super()._ip_default()
        return str(Path(tempfile.mkdtemp(dir=FOLDER.name), "kernel"))
