"""TRL's SFTTrainer: a tiny GPT-2 and a tokenizer of ten words, made on the spot."""

import random

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", *"abcdefgh"]


def main():
    words = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
    )
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(WORDS), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    )
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS[2:], k=20)) for _ in range(400)]
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(output_dir="out", max_length=32, num_train_epochs=2, bf16=False),
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_state()


if __name__ == "__main__":
    main()
