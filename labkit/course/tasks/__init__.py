"""Every challenge of the course, by its key: the notebook's number and a name."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import labkit
from labkit.course.task import CodeTask, Task
from labkit.course.tasks import device, kernels, loader, numbers, whole

MODULES = (loader, device, numbers, kernels, whole)
TASKS: dict[str, Task] = {
    task.key: task
    for task in sorted(
        (task for module in MODULES for task in module.TASKS), key=lambda t: t.key[:2]
    )
}


def solution_of(task: Task) -> Any:
    """Return the solution as a reader can use it: a Pipeline, or code as text."""
    return source_of(task.solution) if isinstance(task, CodeTask) else task.solution


def source_of(answer: str) -> str:
    """Return the source of "module:name", an answer beside its check; nothing is imported."""
    module, _, name = answer.partition(":")
    file = Path(labkit.__file__).parent / "course" / "exercises" / f"{module}.py"
    text = file.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if getattr(node, "name", None) == name:
            return ast.get_source_segment(text, node)
    raise LookupError(f"{answer}: there is no such answer")
