"""The shape of transformers' examples: Trainer with TrainingArguments, a
tiny BERT made on the spot.
"""

import sys

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Sentences(torch.utils.data.Dataset):
    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, 50, (32, 8), generator=draw)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index].sum() % 2}


def main() -> None:
    set_seed(0)
    size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForSequenceClassification(BertConfig(vocab_size=50, **size, **no_dropout))
    args = TrainingArguments(
        output_dir=sys.argv[1],
        per_device_train_batch_size=2,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Sentences())
    loss = trainer.train().training_loss
    if trainer.is_world_process_zero():
        print(f"loss {loss:.5f} of {args.world_size} ranks", flush=True)


if __name__ == "__main__":
    main()
