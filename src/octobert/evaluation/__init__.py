"""Evaluation: what is compared, scores and paired comparisons, interleaved latency, runtime tuning."""
