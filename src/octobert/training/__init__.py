"""Training in PyTorch: fine-tuning, distillation, and quantization-aware training with fake quantization."""
