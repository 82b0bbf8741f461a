"""Tasks: one file a task."""
