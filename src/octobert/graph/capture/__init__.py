"""Capture: a checkpoint or an ONNX file becomes the canonical float graph, checked against its source."""
