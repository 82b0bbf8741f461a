"""Evaluation: candidates and float baselines, scores and paired comparisons, interleaved latency, tuning of runtime options."""
