"""Runs typed functions in steps: keys, store, executors, publishing. It imports no task and no graph."""
