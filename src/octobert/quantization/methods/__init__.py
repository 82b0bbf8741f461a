"""Quantization methods: one file each, from a graph and its ranges to a plan."""
