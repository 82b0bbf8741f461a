"""A finished model at work: load a packaged directory and predict; needs neither torch nor transformers."""
