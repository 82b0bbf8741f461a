"""Documents, packaging and dependencies."""
