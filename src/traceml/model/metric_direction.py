"""Whether more of a logged metric is better: what the script said, else a guess from its name."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from traceml.model.metric_segments import metric_of

MAX_KNOWN = 16_384
"""Names whose answer is kept at hand: comparisons of many runs ask about the same ones again."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _vocabulary(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LOWER = _vocabulary(
    """
    loss losses err error errors mse rmse mae mape smape medae msle perplexity ppl nll bce ce
    xent crossentropy bpb bpc bpd wer cer ter fid kid kl divergence distance brier ece eer fpr
    fnr regret latency time duration ms seconds secs wait delay memory bytes cost energy joules
    watts misclassified failures violations toxicity penalty overflow hallucination
    """
)
_HIGHER = _vocabulary(
    """
    acc accuracy top1 top5 f1 fbeta auc auroc auprc roc ap map precision recall sensitivity
    specificity tpr tnr iou miou jaccard dice bleu rouge meteor chrf bertscore reward rewards
    return returns score r2 psnr ssim throughput mfu hfu ndcg mrr hit hits em match pass win
    wins success elo speedup correct correlation pearson spearman kappa mcc likelihood elbo
    utilization efficiency converted conversion conversions clicked revenue
    """
)
_COST = _vocabulary(
    """
    time duration latency ms seconds secs wait delay memory bytes cost energy joules watts
    throughput mfu hfu utilization speedup efficiency
    """
)
_NEGATED = frozenset({"neg", "negative", "minus", "inverse"})
_RATE = re.compile(r"(/|per[ _-]?)(s|secs?|seconds?|minute|hour|h)$", re.IGNORECASE)
"""`tokens_per_s`, `samples/sec`."""
_SIZE = re.compile(r"bits[ _-]?per[ _-]?(byte|char|dim|pixel)", re.IGNORECASE)


class Direction(NamedTuple):
    """Whether more is better, and how that is known."""

    higher_is_better: bool | None
    """`None` where neither the script nor the name says."""
    is_guessed: bool
    """Whether it is read from the name."""


def unknown_direction(name: str) -> str:
    """Returns what a user is told where a verdict needs a direction that nobody knows."""
    return (
        f"nothing says whether more or less of {name!r} is better: add --better higher or "
        "--better lower"
    )


def direction_of(name: str, said: bool | None) -> Direction:
    """Returns a metric's direction: what the script said of it, else what its name suggests."""
    if said is not None:
        return Direction(said, is_guessed=False)
    return Direction(guess_direction(name), is_guessed=True)


@lru_cache(maxsize=MAX_KNOWN)
def guess_direction(name: str) -> bool | None:
    """Returns whether more of a metric of this name is better; `None` where the name does not say.

    `val/loss` and `error_rate` are better when lower, `eval.top5_accuracy` and `tokens_per_s` when
    higher; `lr` and `epoch` are neither. What a segment is called says nothing: `recall[error]` is
    a recall.
    """
    name = metric_of(name)
    if _RATE.search(name):
        return True
    if _SIZE.search(name):
        return False
    found = _by_words(_words(name))
    own = _words(re.split(r"[/.:]", name)[-1])
    if found is not None and own and own[0] in _NEGATED:
        return not found
    return found


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _by_words(words: list[str]) -> bool | None:
    # Two neighbours may be one word: "f1", "top5", "cross_entropy".
    known = {*words, *(a + b for a, b in pairwise(words))}
    if _LOWER & known or "false" in known:  # first: an accuracy_loss is a loss
        return False
    return True if _HIGHER & known or "true" in known else None


def badness(value: float | None, higher_is_better: bool | None) -> tuple[bool, float]:
    """Returns a key that sorts values of a metric, the worst first; what is missing or not finite
    is the worst. Without a direction all finite values are alike."""
    if value is None or not isfinite(value):
        return (False, 0.0)
    if higher_is_better is None:
        return (True, 0.0)
    return (True, value if higher_is_better else -value)


@lru_cache(maxsize=MAX_KNOWN)
def is_cost(name: str) -> bool:
    """Returns whether a metric is, by its name, about time or resources and not about what the
    model has learned: `tokens_per_s`, `epoch_time`."""
    name = metric_of(name)
    return bool(_RATE.search(name)) or bool(_COST & set(_words(name)))
