"""Inference with a packaged model: predictor, streaming, batching, cost model, runtime options. Needs no torch."""
