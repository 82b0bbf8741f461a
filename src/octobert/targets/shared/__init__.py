"""Code that several targets share: files of a package, sessions of a static shape, ONNX graphs as PyTorch modules."""
