"""The recipe: its models, how it is loaded and changed, and the training settings inside it."""
