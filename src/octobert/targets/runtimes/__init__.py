"""Runtimes: one file each, how ONNX Runtime, OpenVINO and PyTorch open a model and run it."""
