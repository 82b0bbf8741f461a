"""What runtimes do with a model: one file a runtime, named as in `Capabilities.runtime`; and what to conclude from it."""
