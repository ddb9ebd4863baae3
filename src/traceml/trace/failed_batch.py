"""What the model was given as memory ran out: how large the batch was that did not fit."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from math import prod
from types import FrameType
from typing import Any, NamedTuple

import torch

from traceml.trace.interruptions import variables_of
from traceml.trace.loaders import shape_in
from traceml.trace.recorder import Recorder
from traceml.trace.script_objects import own_attributes


class FailedBatch(NamedTuple):
    """What is known of the batch in work; `None` for what is not."""

    batch_samples: int | None = None
    input_elements: int | None = None
    """Of the first tensor that the model was called with."""


class BatchReader:
    """Tells the size of the batch that the model is working on."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def read(self, call: FrameType | None, is_evaluation: bool) -> FailedBatch:
        """The batch of a call of the model, by the frame of that call; without one, the batch that
        was fetched for the step."""
        shape = () if call is None else first_shape(_arguments(call))
        samples = self._samples(shape, is_evaluation)
        return FailedBatch(samples, prod(shape) if shape else None)

    def _samples(self, shape: tuple[int, ...], is_evaluation: bool) -> int | None:
        """The number of samples in the batch: the loader's batch size, unless the model got only a
        part of it (a micro-batch, or the last batch of an epoch).

        Without a loader it is the first dimension of what the model was given.
        """
        fetched = self._fetched(is_evaluation)
        if len(shape) < 2:
            return fetched
        is_part = fetched is None or (shape[0] < fetched and shape[1] != fetched)
        return shape[0] if is_part else fetched

    def _fetched(self, is_evaluation: bool) -> int | None:
        """The batch size of the loader of the last fetch; `None` where that fetch was not for this
        step or, in an evaluation, where training fetches from the same loader."""
        recorder = self._recorder
        is_trainings = recorder.source == recorder.trained
        is_old = is_trainings if is_evaluation else recorder.ends_at_fetch != recorder.ends
        iterator = None if is_old else recorder.iterator()
        sampler = own_attributes(iterator).get("_index_sampler")
        size = own_attributes(sampler).get("batch_size")
        return size if type(size) is int and size > 0 else None

    def is_graph_kept(self, model: Any) -> bool:
        """Whether a model in evaluation mode is called while autograd keeps what backward needs."""
        return own_attributes(model).get("training") is False and torch.is_grad_enabled()


def first_shape(arguments: Iterable[Any]) -> tuple[int, ...]:
    """The shape of the first tensor that a model was called with; empty where there is none, or it
    has a dimension of no one length, as nested tensors have."""
    for value in arguments:
        shape = shape_in(value)
        if shape:
            return tuple(shape) if all(isinstance(size, int) for size in shape) else ()
    return ()


def _arguments(call: FrameType) -> list[Any]:
    """What a method was called with, without `self`."""
    code, given = call.f_code, variables_of(call)
    named = code.co_argcount + code.co_kwonlyargcount
    further = [inspect.CO_VARARGS, inspect.CO_VARKEYWORDS]
    count = named + sum(bool(code.co_flags & flag) for flag in further)
    found: list[Any] = []
    for name in code.co_varnames[1:count]:
        value = given.get(name)
        if type(value) is tuple:
            found += value
        elif type(value) is dict:
            found += value.values()
        else:
            found.append(value)
    return found
