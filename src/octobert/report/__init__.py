"""A run directory becomes a terminal table, JSON and one HTML page."""
