"""The kinds of events in a trace, and the classes of time and rows of a picture that they make."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The kinds of events that count."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    COMMUNICATION = 3  # a collective, as the host issues it
    RUNTIME = 4  # a call of the host into the device's runtime
    DATALOADER = 5
    CPU_OP = 6
    COLLECTIVE_KERNEL = 7
    STEP = 8
    ANNOTATION = 9
    PYTHON = 10


KERNELS = (Kind.KERNEL, Kind.COLLECTIVE_KERNEL)
COPIES = (Kind.MEMCPY, Kind.MEMSET)
ON_DEVICE = (*KERNELS, *COPIES)
HOST_WORK = (Kind.COMMUNICATION, Kind.DATALOADER, Kind.CPU_OP)

TRACE_CLASSES = {  # of a step, by priority
    "kernel": (Kind.KERNEL,),
    "memcpy": (Kind.MEMCPY,),
    "memset": (Kind.MEMSET,),
    "communication": (Kind.COMMUNICATION, Kind.COLLECTIVE_KERNEL),
    "runtime": (Kind.RUNTIME,),
    "dataloader": (Kind.DATALOADER,),
    "cpu_exec": (Kind.CPU_OP,),
}
LANES = {  # rows of a picture of the trace
    "CPU operators": (Kind.CPU_OP,),
    "DataLoader": (Kind.DATALOADER,),
    "CUDA calls": (Kind.RUNTIME,),
    "kernels": (Kind.KERNEL,),
    "collectives": (Kind.COLLECTIVE_KERNEL,),
    "copies": COPIES,
}
IDLE_CAUSES = ("host_wait", "host", "kernel_wait", "other")  # of a device's gaps
