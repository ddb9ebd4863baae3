"""TRL's GRPO, which generates text inside its training steps, with TraceML's callback."""

from __future__ import annotations

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from traceml.integrations.huggingface import TraceMLCallback

torch.manual_seed(0)
words = {word: number for number, word in enumerate(["<pad>", "<eos>", *"abcdefgh"])}
tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))
tokenizer.pre_tokenizer = Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), num_attention_heads=2, **small))
trainer = GRPOTrainer(
    model=model,
    reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
    args=GRPOConfig(
        output_dir="checkpoints",
        max_steps=3,
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=4,
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=Dataset.from_list([{"prompt": "a b c"}] * 16),
    processing_class=fast,
    callbacks=[TraceMLCallback(run_name="trained")],
)
trainer.train()
print(f"steps: {trainer.state.global_step}")
