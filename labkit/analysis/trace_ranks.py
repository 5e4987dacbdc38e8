"""Who launched what: the events of a trace, parted into ranks, with device work tied to its launch.

A trace of torch.profiler is one process's: one rank. Tools that merge traces put several ranks into
one file; a rank is then a process that carries ProfilerStep marks of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit.analysis import trace_names as kinds
from labkit.analysis.trace_events import Columns

# Beyond these a file is a mistake, or an attack on the reader's time.
MAX_RANKS = 64
MAX_DEVICES = 256


class Intervals(NamedTuple):
    """Starts and ends of stretches of time, in ns, in no particular order."""

    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class Rank:
    """One rank's events.

    Attributes:
        label: The process id, as the trace has it.
        host: The intervals of each kind of host event.
        device: The intervals of all work on devices, sorted by start.
        kind: What each piece of device work is (kinds.KERNEL, MEMCPY, ...).
        place: On which device it ran.
        name: Index of its kernel name, -1 where it is no kernel.
        launch: Index into `launches` of the call that launched it, -1 where unknown.
        eligible: Whether it was launched by an operator that can use Tensor Cores.
        launches: The intervals of the calls into the CUDA (HIP, XPU) runtime.
        graph_launches: How many of them launched a CUDA graph.
    """

    label: str
    host: dict[int, Intervals]
    device: Intervals
    kind: np.ndarray
    place: np.ndarray
    name: np.ndarray
    launch: np.ndarray
    eligible: np.ndarray
    launches: Intervals
    graph_launches: int


def split(columns: Columns) -> list[Rank]:
    """Part the events into ranks; raise ValueError for too many of them, or of devices."""
    if len(columns.devices) > MAX_DEVICES:
        raise ValueError(f"has work on more than {MAX_DEVICES} devices")
    on_device = columns.kind <= kinds.MEMSET
    on_device |= columns.kind == kinds.COMMUNICATION_KERNEL
    host, device = np.flatnonzero(~on_device), np.flatnonzero(on_device)
    stepping = np.unique(columns.place[columns.kind == kinds.STEP])
    if len(stepping) > MAX_RANKS:
        raise ValueError(f"has step marks of more than {MAX_RANKS} processes")
    if len(stepping) <= 1:
        named = stepping[0] if len(stepping) else 0
        label = columns.processes[named] if columns.processes else "none"
        return [_rank(columns, label, host, device)]
    owner = _owners(columns, stepping, host, device)
    return [
        _rank(
            columns,
            columns.processes[process],
            host[columns.place[host] == process],
            device[owner[columns.place[device]] == process],
        )
        for process in stepping
    ]


def _owners(
    columns: Columns, stepping: np.ndarray, host: np.ndarray, device: np.ndarray
) -> np.ndarray:
    """Return the process that each device worked for, by whose launches its work answers to.

    Ranks that run the same program have the same correlation ids: between equals, devices and
    processes are paired in the order of the file.
    """
    votes = np.zeros((len(columns.devices), len(stepping)))
    launches = host[_is_launch(columns.kind[host])]
    for column, process in enumerate(stepping):
        mine = columns.correlation[launches[columns.place[launches] == process]]
        answered = np.isin(columns.correlation[device], mine[mine > 0])
        votes[:, column] = np.bincount(
            columns.place[device], weights=answered, minlength=len(columns.devices)
        )
    owner = np.empty(len(columns.devices), dtype=np.int64)
    taken = np.zeros(len(stepping))
    for place, row in enumerate(votes):
        best = np.flatnonzero(row == row.max())
        choice = best[np.argmin(taken[best])]
        taken[choice] += 1
        owner[place] = stepping[choice]
    return owner


def _is_launch(kind: np.ndarray) -> np.ndarray:
    return (kind == kinds.RUNTIME) | (kind == kinds.GRAPH_LAUNCH)


def _rank(columns: Columns, label: str, host: np.ndarray, device: np.ndarray) -> Rank:
    device = device[np.argsort(columns.start[device], kind="stable")]
    host_kind, host_external = columns.kind[host], columns.external[host]
    is_launch = _is_launch(host_kind)
    launches = host[is_launch]
    launch = _last_match(columns.correlation[device], columns.correlation[launches])
    # Some versions give the operator's id to the launch only.
    external = columns.external[device].copy()
    adopt = (external == 0) & (launch >= 0)
    external[adopt] = columns.external[launches[launch[adopt]]]

    def launched_by(kind: int) -> np.ndarray:
        ids = host_external[host_kind == kind]
        return np.isin(external, ids[ids > 0])

    kind = columns.kind[device].copy()
    kind[(kind == kinds.KERNEL) & launched_by(kinds.COMMUNICATION)] = kinds.COMMUNICATION_KERNEL
    return Rank(
        label=label,
        host={
            int(k): Intervals(
                columns.start[host[host_kind == k]], columns.end[host[host_kind == k]]
            )
            for k in np.unique(host_kind)
        },
        device=Intervals(columns.start[device], columns.end[device]),
        kind=kind,
        place=columns.place[device],
        name=columns.name[device],
        launch=launch,
        eligible=launched_by(kinds.ELIGIBLE_OP),
        launches=Intervals(columns.start[launches], columns.end[launches]),
        graph_launches=int(np.sum(host_kind == kinds.GRAPH_LAUNCH)),
    )


def _last_match(wanted: np.ndarray, offered: np.ndarray) -> np.ndarray:
    """Return for each wanted id the index of the last equal offered one, -1 for none or id 0."""
    if not len(offered):
        return np.full(len(wanted), -1)
    order = np.argsort(offered, kind="stable")
    found = np.searchsorted(offered[order], wanted, side="right") - 1
    match = order[np.maximum(found, 0)]
    return np.where((found >= 0) & (wanted > 0) & (offered[match] == wanted), match, -1)
