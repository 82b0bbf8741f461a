"""The functions of octobert: what the commands do, typed, for use from Python. `octobert` re-exports them.

Paths are `str` or `Path`. A recipe is the path of a file, a mapping, or a `Recipe`. Long calls take `progress`, a function that
gets a `ProgressEvent` at each step; `ProgressBar` is one for terminals and notebooks. Errors are `OctobertError` or subclasses.
Nothing heavy is imported before a function is called.
"""
