"""Quantization: observing activations, calibrators, graph transforms, methods, placements, weight corrections, search."""
