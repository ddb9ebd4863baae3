"""A language model with Hugging Face's Trainer: workers, evaluation and a checkpoint per epoch."""

from __future__ import annotations

import argparse
import tempfile

from gpu_turn import wait_for_turn
from made_data import Tokens
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
options = parser.parse_args()

length, batch, width, layers = (32, 4, 64, 2) if options.tiny else (512, 32, 1024, 8)
steps = 6 if options.tiny else 30
set_seed(0)
config = GPT2Config(
    vocab_size=8192, n_positions=length, n_embd=width, n_layer=layers, n_head=width // 64
)
model = GPT2LMHeadModel(config)
wait_for_turn()
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            num_train_epochs=2,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=batch,
            bf16=not options.tiny,
            use_cpu=options.tiny,
            dataloader_num_workers=2,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_only_model=True,
            logging_steps=steps // 3,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Tokens(steps * batch, length, config.vocab_size),
        eval_dataset=Tokens(4 * batch, length, config.vocab_size),
    )
    trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(f"step {entry['step']} loss {float(entry['loss']):.4f}")
print(f"steps {trainer.state.global_step}")
