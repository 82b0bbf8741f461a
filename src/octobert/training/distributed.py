"""The processes of a distributed training: which of them this is, and what they agree on. Imports torch only when needed."""

from __future__ import annotations

import os


def rank() -> int:
    """Return the number of this process among all processes; 0 outside of distributed training."""
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """Return the number of processes on all machines; 1 outside of distributed training."""
    return int(os.environ.get("WORLD_SIZE", 1))


def is_connected() -> bool:
    """Return whether torch has connected this process to others."""
    import torch

    return torch.distributed.is_available() and torch.distributed.is_initialized()


def wait_for_all() -> None:
    """Wait until every process has come here; nothing without other processes."""
    if is_connected():
        import torch

        torch.distributed.barrier()


def decision_of_first(decision: bool) -> bool:
    """Return the decision of the first process in all processes, so that clocks that differ lead to one decision."""
    if not is_connected():
        return decision
    import torch

    flag = torch.tensor([int(decision)])
    torch.distributed.broadcast(flag, src=0)
    return bool(flag.item())
