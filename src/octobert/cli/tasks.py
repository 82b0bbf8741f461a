"""`octobert tasks`: the tasks and their options."""

from __future__ import annotations

from octobert.cli import _show

PANEL = _show.LOOK
EXAMPLES = ("octobert tasks",)


def command(as_json: bool = _show.JSON_OPTION) -> None:
    """List the tasks and their options."""
    import octobert

    tasks = octobert.list_tasks()
    if as_json:
        _show.document(
            [
                {"name": name, "description": task.DESCRIPTION, "options": task.Options.model_json_schema()}
                for name, task in tasks.items()
            ]
        )
        return
    for name, task in tasks.items():
        _show.item(name, task.DESCRIPTION, column=22)
        _show.item("", f"options: {', '.join(task.Options.model_fields)}", column=22)
