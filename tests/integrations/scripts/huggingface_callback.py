"""A Seq2SeqTrainer that reports to TraceML, under plain python: accumulation, evaluation by
generated text, checkpoints and a prediction."""

from __future__ import annotations

import torch
from transformers import BartConfig, BartForConditionalGeneration, Seq2SeqTrainer
from transformers import Seq2SeqTrainingArguments as Arguments

import traceml.integrations.huggingface  # noqa: F401 - it makes `report_to` know the name


class Pairs(torch.utils.data.Dataset):
    """Sequences to be copied."""

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(3, 32, (count, 8))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, place):
        return {"input_ids": self.tokens[place], "labels": self.tokens[place]}


torch.manual_seed(0)
small = {"layers": 1, "attention_heads": 1, "ffn_dim": 16}
parts = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in small.items()}
config = BartConfig(vocab_size=32, d_model=16, max_position_embeddings=16, **parts)
trainer = Seq2SeqTrainer(
    model=BartForConditionalGeneration(config),
    args=Arguments(
        output_dir="checkpoints",
        max_steps=6,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        use_cpu=True,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        logging_steps=1,
        predict_with_generate=True,
        generation_max_length=8,
        report_to="traceml",
        disable_tqdm=True,
    ),
    train_dataset=Pairs(64),
    eval_dataset=Pairs(4),
    compute_metrics=lambda found: {"length": float(found.predictions.shape[1])},
)
trainer.train()
trainer.predict(Pairs(2))
print(f"steps: {trainer.state.global_step}")
