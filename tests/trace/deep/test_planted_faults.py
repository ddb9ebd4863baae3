"""Some of the faults that `python -m benchmarks.layer_faults` plants, trained in this process."""

import json

import msgspec
import pytest
from benchmarks.layer_faults.catalog import LAYER_FAULTS
from benchmarks.layer_faults.judge import judge
from benchmarks.layer_faults.train import options, train

from traceml.store.load import load_run
from traceml.summaries.build import build

CHOSEN = (
    "slow backward in nested",
    "slow container",
    "slow, called three times",
    "slow, shared by two names",
    "heavy activations in nested",
    "NaN in forward in nested",
    "NaN in backward alone in resnet",
    "infinity in float16",
    "a bad batch",
    "a bad batch of images",
)
BY_NAME = {each.name: each for each in LAYER_FAULTS}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_planted_layer_is_named(traced, name):
    fault = BY_NAME[name]
    traced.session.begin_deep_profile()
    train(options(fault.words()))
    traced.finish()
    summary = build(load_run(traced.folder), 0.0, "0")
    verdict = judge(fault.truth, json.loads(msgspec.json.encode(summary)))
    assert verdict.is_right, verdict


def test_the_names_of_faults_are_their_own():
    assert len(BY_NAME) == len(LAYER_FAULTS)
