"""transformers' Trainer with its defaults: a tiny BERT, made on the spot."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count):
        self.ids = torch.randint(0, 50, (count, 8), generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index].sum() % 2}


def main():
    size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = BertForSequenceClassification(BertConfig(vocab_size=50, **size))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(output_dir="out", eval_strategy="epoch"),
        train_dataset=Sentences(6000),
        eval_dataset=Sentences(64),
    )
    trainer.train()
    trainer.save_state()


if __name__ == "__main__":
    main()
