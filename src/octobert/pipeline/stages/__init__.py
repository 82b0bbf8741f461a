"""Stages: one file each, with a function `run`; files in, files out. See `pipeline/contract.py`."""

# Stages that a cluster may run: they compute the same on every machine of one kind. The others stay on this machine: they
# measure time, describe the machine, keep what they have found in `scratch`, or only copy files.
ANYWHERE = frozenset(
    {
        "calibrate",
        "capture",
        "evaluate",
        "export",
        "judge",
        "observe",
        "quantize",
        "simulate",
        "sweep",
        "transform",
    }
)
