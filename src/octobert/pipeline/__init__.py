"""The pipeline: a recipe becomes steps, steps become artifacts in a store, artifacts become packages."""
