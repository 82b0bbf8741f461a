"""Where a model comes from: hub, folder, package or ONNX file; checkpoints on disk."""
