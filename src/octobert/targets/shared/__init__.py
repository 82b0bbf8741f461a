"""Code that several targets and runtimes share: files of a package, and sessions."""
