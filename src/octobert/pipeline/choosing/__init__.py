"""The search for the best model on a machine: what may be tried, trials, limits, and the choice."""
