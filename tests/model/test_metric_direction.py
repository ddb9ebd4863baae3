"""Which way a metric improves: what the script says wins, else the name is asked."""

from __future__ import annotations

import pytest

from traceml.model.metric_direction import direction_of, guess_direction, is_cost


@pytest.mark.parametrize(
    "name",
    [
        *("accuracy", "val/acc", "acc@1", "eval.top5_accuracy", "macro-F1", "F1", "mAP50", "R2"),
        *("valMIoU/iou", "BLEU", "rougeL", "pass@1", "episode_return", "log_likelihood"),
        *("tokens_per_s", "samples/sec", "throughput", "neg_mean_squared_error"),
    ],
)
def test_more_is_better(name: str) -> None:
    assert guess_direction(name) is True


@pytest.mark.parametrize(
    "name",
    [
        *("loss", "val/loss", "trainLoss", "error_rate", "RMSE", "perplexity", "cross_entropy"),
        *("bits_per_byte", "negative_log_likelihood", "false_positive_rate", "wer", "FID"),
        *("epoch_time", "time_to_accuracy", "accuracy_loss", "latency_ms"),
    ],
)
def test_less_is_better(name: str) -> None:
    assert guess_direction(name) is False


@pytest.mark.parametrize(
    "name",
    ["lr", "epoch", "grad_norm", "learning_rate", "top_k", "policy_entropy", "损失", ""],
)
def test_a_name_that_does_not_say_is_not_guessed(name: str) -> None:
    assert guess_direction(name) is None


def test_what_the_script_says_wins_over_the_name() -> None:
    assert direction_of("loss", True) == (True, False)
    assert direction_of("loss", None) == (False, True)


def test_time_and_resources_are_not_what_a_model_has_learned() -> None:
    assert is_cost("tokens_per_s") and is_cost("epoch_time") and is_cost("gpu/memory")
    assert not is_cost("loss") and not is_cost("accuracy") and not is_cost("val/perplexity")
