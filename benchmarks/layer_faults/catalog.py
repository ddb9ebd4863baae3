"""The planted faults, and what the deep profile has to say of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Question(Enum):
    """What is asked of a run's summary."""

    SLOW = "which layer takes the most time"
    HEAVY = "which layer keeps the most for backward"
    LEAK = "which module grows"
    BAD_VALUE = "which layer made the first bad value"
    EXPLOSION = "whose gradient exploded"
    FAILURE = "where memory ran out"


@dataclass(frozen=True, slots=True)
class Truth:
    """What is so, because it was planted."""

    question: Question
    layer: str | None
    """`None`: no layer may be named."""
    phase: str | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class LayerFault:
    """One row of the table."""

    name: str
    model: str
    fault: str
    layer: str
    truth: Truth
    options: tuple[object, ...] = ()
    is_gpu: bool = False

    @property
    def is_cpu_alone(self) -> bool:
        """Whether it works by a limit that a GPU does not know."""
        return "--limit-mb" in self.options

    @property
    def fails(self) -> bool:
        """Whether the training ends with an exception."""
        return self.truth.question is Question.FAILURE

    def words(self) -> list[str]:
        """The arguments of the training script."""
        device = ["--device", "cuda"] if self.is_gpu else []
        return [self.model, self.fault, self.layer, *map(str, self.options), *device]


MIDDLE = "blocks.2.mlp.2"
BERT_LAYER = "bert.encoder.layer.1.intermediate.dense"
GPT2_LAYER = "transformer.h.1.mlp.c_proj"
RESNET_LAYER = "layer2.0.conv2"
ONSET = 41
LATE = ("--onset", ONSET, "--steps", 60)
HUGE = ("--size", 1 << 46, "--onset", ONSET, "--steps", 60)
GROWS = ("--size", 1.3, "--onset", 60, "--steps", 140)
WAITS = ("--size", 20, "--steps", 40)
LEAKS = ("--steps", 400)


def _of_models(
    name: str, fault: str, truth: Truth, options: tuple[object, ...]
) -> tuple[LayerFault, ...]:
    """The same fault in a layer of each kind of model."""
    places = {
        "nested": MIDDLE,
        "bert": BERT_LAYER,
        "gpt2": GPT2_LAYER,
        "resnet": RESNET_LAYER,
    }
    return tuple(
        LayerFault(
            f"{name} in {model}",
            model,
            fault,
            layer,
            Truth(truth.question, layer, truth.phase, truth.step),
            options,
        )
        for model, layer in places.items()
    )


def _slow(phase: str, layer: str) -> Truth:
    return Truth(Question.SLOW, layer, phase)


def _bad(phase: str, layer: str | None = MIDDLE) -> Truth:
    return Truth(Question.BAD_VALUE, layer, phase, ONSET)


def _full(phase: str, layer: str | None = MIDDLE, step: int = ONSET) -> Truth:
    return Truth(Question.FAILURE, layer, phase, step)


SLOW = (
    *_of_models("slow forward", "slow_forward", _slow("forward", ""), WAITS),
    *_of_models("slow backward", "slow_backward", _slow("backward", ""), WAITS),
    LayerFault(
        "slow container", "nested", "slow_forward", "blocks.2", _slow("forward", "blocks.2"),
        WAITS,
    ),
    LayerFault(
        "slow, called three times", "nested", "slow_forward", "repeated",
        _slow("forward", "repeated"), WAITS,
    ),
    LayerFault(
        "slow, shared by two names", "nested", "slow_backward", "tied", _slow("backward", "stem"),
        WAITS,
    ),
    LayerFault(
        "slow forward under Lightning", "nested", "slow_forward", MIDDLE,
        _slow("forward", f"net.{MIDDLE}"), (*WAITS, "--lightning"),
    ),
)  # fmt: skip
HEAVY = _of_models(
    "heavy activations", "heavy_activations", Truth(Question.HEAVY, ""), ("--size", 64)
)
LEAKING = (
    LayerFault(
        "leak: a layer keeps its outputs", "wide", "keeps_outputs", "blocks.2.mlp.2",
        Truth(Question.LEAK, "blocks.2.mlp.2"), LEAKS,
    ),
    LayerFault(
        "leak: the script keeps a layer's outputs", "wide", "kept_by_script", "blocks.1.mlp.0",
        Truth(Question.LEAK, "blocks.1.mlp.0"), LEAKS,
    ),
    LayerFault(
        "leak: a list of modules grows", "wide", "adds_modules", "blocks.3",
        Truth(Question.LEAK, "blocks.3.experts"), ("--size", 100_000, *LEAKS),
    ),
)  # fmt: skip
BAD_VALUES = (
    *_of_models("NaN in forward", "nan_forward", _bad("forward"), LATE),
    *_of_models("NaN in backward alone", "nan_backward", _bad("backward"), LATE),
    LayerFault(
        "infinity in float16", "nested", "overflows_half", MIDDLE, _bad("forward"), LATE
    ),
    LayerFault(
        "infinity in bfloat16", "nested", "overflows_bfloat16", MIDDLE, _bad("forward"), LATE
    ),
    LayerFault("a bad batch", "nested", "bad_batch", "-", _bad("forward", None), LATE),
    LayerFault("a bad batch of images", "resnet", "bad_batch", "-", _bad("forward", None), LATE),
    LayerFault(
        "NaN in forward under Lightning", "nested", "nan_forward", MIDDLE,
        _bad("forward", f"net.{MIDDLE}"), (*LATE, "--lightning"),
    ),
)  # fmt: skip
EXPLOSIONS = _of_models("exploding gradient", "explodes", Truth(Question.EXPLOSION, ""), GROWS)
FULL = (
    *_of_models("out of memory in forward", "full_in_forward", _full("forward"), HUGE),
    *_of_models("out of memory in backward", "full_in_backward", _full("backward"), HUGE),
    LayerFault(
        "out of memory in validation", "nested", "full_in_validation", MIDDLE,
        _full("evaluation", step=ONSET + 1), (*HUGE, "--validate-every", 1),
    ),
    LayerFault(
        "out of memory in the first optimizer step", "lopsided", "full_in_optimizer", "-",
        _full("optimizer", "huge", 1), ("--limit-mb", 300, "--steps", 5),
    ),
)  # fmt: skip
LAYER_FAULTS = (*SLOW, *HEAVY, *LEAKING, *BAD_VALUES, *EXPLOSIONS, *FULL)


def chosen(only: list[str], is_gpu: bool = False) -> list[LayerFault]:
    """Those that have one of the words in their name, on a CUDA device or not."""
    found = [each for each in LAYER_FAULTS if not only or any(word in each.name for word in only)]
    return [replace(each, is_gpu=is_gpu) for each in found if not (is_gpu and each.is_cpu_alone)]
