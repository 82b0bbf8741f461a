"""`octobert tasks`: the tasks and their options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import octobert
from octobert.cli import _show

PANEL = _show.LOOK
EXAMPLES = ("octobert tasks",)


def command() -> Iterator[Any]:
    """List the tasks and their options."""
    tasks = octobert.list_tasks()
    yield [
        {
            "name": name,
            "description": task.description,
            "options": type(task).model_json_schema(),
        }
        for name, task in tasks.items()
    ]
    for name, task in tasks.items():
        _show.item(name, task.description, column=22)
        _show.item("", f"options: {', '.join(type(task).model_fields)}", column=22)
