"""Runs typed functions in steps: keys, store, executors, publishing. It knows no task and no graph."""
