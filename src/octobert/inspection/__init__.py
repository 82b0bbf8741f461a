"""Inspection: a linter for Q/DQ files, and profilers that show what a runtime really ran."""
