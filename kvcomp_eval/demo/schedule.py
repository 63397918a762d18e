"""The curriculum: stages counted in steps, so that a run is reproducible."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage of training.

    Parameters
    ----------
    name : str
        What the stage is for.
    steps : int
        Optimiser steps.
    layouts : tuple of (samples, images, grid)
        One is drawn per step; `samples` keeps a step near 3,000 tokens a process.
    learning_rate : float
        AdamW's learning rate at the start of the stage.
    final_rate : float or None
        Learning rate that the stage decays to, linearly; None keeps it constant.
    text : bool
        False trains the vision tower alone on its auxiliary heads.
    vision : bool
        False freezes the vision tower.
    describe_share : float
        Share of steps with descriptions.
    short_weight : float
        Weight of the tokens of short answers in the loss; all others have weight 1.
    """

    name: str
    steps: int
    layouts: tuple[tuple[int, int, int], ...]
    learning_rate: float
    final_rate: float | None = None
    text: bool = True
    vision: bool = True
    describe_share: float = 0.6
    short_weight: float = 3.0


_GRID_5 = ((2, 5, 5), (2, 6, 5), (1, 7, 5), (3, 3, 5))
SCHEDULE = (
    Stage("vision", 1000, ((16, 1, 2), (10, 1, 3), (6, 1, 4), (4, 1, 5)), 3e-3, 3e-4, text=False),
    Stage("grid 2", 200, ((8, 1, 2), (6, 2, 2)), 2e-3, vision=False, describe_share=1.0),
    Stage("grid 3", 250, ((6, 1, 3), (4, 2, 3), (5, 3, 2)), 2e-3, vision=False, describe_share=1.0),
    Stage("grid 4", 250, ((4, 1, 4), (3, 2, 4), (3, 3, 3)), 2e-3, vision=False, describe_share=1.0),
    Stage("grid 5", 400, ((3, 1, 5), (2, 3, 5), (2, 4, 4), (3, 2, 5)), 2e-3, vision=False),
    Stage("many images", 350, ((2, 5, 5), (2, 6, 5), (1, 7, 5)), 2e-3, 1.138125e-3, vision=False),
    Stage("many images, again", 400, _GRID_5, 1.2e-3, 8.62857e-4, vision=False),
    Stage("rows and descriptions", 1050, _GRID_5, 8.6e-4, 1e-5, vision=False, short_weight=1.0),
)


def locate(schedule: tuple[Stage, ...], step: int) -> tuple[Stage, float]:
    """Return the stage of a global step and the learning rate there (without warm-up)."""
    start = 0
    for stage in schedule:
        if step < start + stage.steps:
            if stage.final_rate is None:
                return stage, stage.learning_rate
            progress = (step - start) / stage.steps
            return stage, stage.learning_rate + progress * (stage.final_rate - stage.learning_rate)
        start += stage.steps
    raise ValueError(f"Step {step} is beyond the schedule of {start} steps.")


def total_steps(schedule: tuple[Stage, ...]) -> int:
    """Number of steps of a schedule."""
    return sum(stage.steps for stage in schedule)
