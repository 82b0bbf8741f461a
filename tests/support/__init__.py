"""What test files share: tiny checkpoints, graphs, runs, and the command line."""
