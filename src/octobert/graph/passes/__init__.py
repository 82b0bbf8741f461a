"""Graph passes that run after quantization: first-token slicing, norms, float16, static shapes, Gemm, EPContext."""
