"""What changed between two files of generated samples, paired by their prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceml.compare.artifact_details import MAX_LISTED, SampleChange, SamplesChange
from traceml.compare.text_changes import word_diff

PROMPT_KEYS = ("prompt", "input", "question", "instruction", "source", "id")
"""In the order in which they are looked for; the first that every record of both files has."""
TEXT_KEYS = (
    "text",
    "output",
    "completion",
    "response",
    "answer",
    "generated",
    "generation",
    "generated_text",
    "prediction",
)


def compare_samples(
    a: Sequence[Mapping[str, object]], b: Sequence[Mapping[str, object]]
) -> SamplesChange | None:
    """Returns the prompts for which other texts were generated; `None` where no key holds them."""
    text_key = _common(TEXT_KEYS, a, b)
    if text_key is None:
        return None
    prompt_key = _common(PROMPT_KEYS, a, b)
    lhs, rhs = (_by_prompt(side, prompt_key, text_key) for side in (a, b))
    both = [prompt for prompt in lhs if prompt in rhs]
    changed = [prompt for prompt in both if lhs[prompt] != rhs[prompt]]
    return SamplesChange(
        paired_by=prompt_key or "line",
        paired=len(both),
        same=len(both) - len(changed),
        only_lhs=len(lhs) - len(both),
        only_rhs=len(rhs) - len(both),
        samples=tuple(
            SampleChange(_shown(prompt), word_diff(lhs[prompt], rhs[prompt]))
            for prompt in changed[:MAX_LISTED]
        ),
    )


def _common(
    keys: Sequence[str], a: Sequence[Mapping[str, object]], b: Sequence[Mapping[str, object]]
) -> str | None:
    records = (*a, *b)
    return next((key for key in keys if all(key in record for record in records)), None)


def _by_prompt(
    records: Sequence[Mapping[str, object]], prompt_key: str | None, text_key: str
) -> dict[tuple[str, int], str]:
    """Returns the texts by prompt; a prompt that comes again is told apart by its number."""
    found: dict[tuple[str, int], str] = {}
    seen: dict[str, int] = {}
    for number, record in enumerate(records, 1):
        prompt = f"line {number}" if prompt_key is None else str(record[prompt_key])
        seen[prompt] = seen.get(prompt, 0) + 1
        found[prompt, seen[prompt]] = str(record[text_key])
    return found


def _shown(prompt: tuple[str, int]) -> str:
    text, number = prompt
    return text if number == 1 else f"{text} ({number})"
