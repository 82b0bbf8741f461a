"""Core data types that every other room reads: errors, plugins, the plan, ranges, capabilities, sessions, result records."""
