"""Modules that hold more from step to step, in words: what grows, and what to do about it."""

from __future__ import annotations

from traceml.facts.facts import Facts
from traceml.facts.layer_growth import LayerGrowth
from traceml.model.layer_names import MODEL
from traceml.model.quantities import count, memory

MAX_MODULE_SHARE = 1.5
"""Of what was measured: a module cannot keep more, so its number is wrong, or not of every step."""


def module_that_filled(
    facts: Facts, rank: int, held_bytes: int | None, min_share: float
) -> LayerGrowth | None:
    """Returns the module whose growth, at its speed over all steps of the rank, is at least this
    share of what the rank held; `None` where the deep profile saw none that explains it."""
    if not held_bytes:
        return None
    steps = max((each.steps_taken for each in facts.ranks if each.rank.rank == rank), default=0)
    return next(
        (
            each
            for each in facts.layers.growth
            if each.rank == rank and explains(each.per_step_bytes * steps, held_bytes, min_share)
        ),
        None,
    )


def explains(module_bytes: float, measured_bytes: float, min_share: float) -> bool:
    """Returns whether what a module keeps is at least this share of what was measured, and not
    more than can be."""
    return min_share * measured_bytes <= module_bytes <= MAX_MODULE_SHARE * measured_bytes


def growth_words(module: LayerGrowth) -> str:
    """Returns what a module holds more of in every step, as a sentence."""
    size = f"{memory(module.per_step_bytes)} more per step"
    name = module.name or MODEL
    if module.is_output:
        return f"{size} are outputs of {name} that outlive their step."
    if module.added:
        return f"{name} holds {size}: {count(module.added, 'layer')} were added to it."
    if module.attribute is None:
        return f"{name} holds {size} in its parameters and buffers."
    return f"{name} keeps {size} in its attribute {module.attribute}."


def growth_remedy(module: LayerGrowth) -> str:
    """Returns what to do about a module that grows, as a sentence."""
    place = f"{module.name or MODEL} ({module.kind})"
    if module.is_output:
        return (
            f"Look for who keeps the outputs of {place}: a list of the script's, a forward hook, a "
            "loss that is kept with its graph."
        )
    if module.added:
        return f"Add layers to {place} once, before training, and not in every step."
    if module.attribute is None:
        return f"See what makes the parameters or buffers of {place} larger in every step."
    return (
        f"Empty {module.attribute} of {place} after each step, or keep numbers in place of tensors "
        "(item(), or detach() and a bounded length)."
    )
