"""The command line: one file per command. Nothing heavy is imported before a command runs, so `--help` is fast."""
