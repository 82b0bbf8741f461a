"""A custom training loop for `recipes/custom-training.yaml`: AdamW, a cosine schedule, and gradients clipped at a norm of 1."""

from __future__ import annotations

import math

import torch

from octobert.training.job import Job


def train(job: Job) -> None:
    """Train `job.model` in place; the simulation observes for the first half of the steps."""
    steps = max(1, round(job.settings.epochs * len(job.batches())))
    optimizer = torch.optim.AdamW(
        job.model.parameters(), lr=job.settings.learning_rate, weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    done = epoch = 0
    while done < steps:
        for batch in job.batches(epoch):
            if done == steps:
                break
            if job.simulation is not None:
                job.simulation.observing = done < steps / 2
            job.model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(job.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
            if job.on_step:
                job.on_step(done, steps)
        epoch += 1
