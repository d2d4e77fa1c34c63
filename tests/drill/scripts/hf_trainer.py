"""Trains with transformers' Trainer. `--fault` leaves out one thing that a resume needs."""

import argparse
import os

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="")
args = parser.parse_args()


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        ids = torch.randint(0, 50, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids.sum() % 2}


class Pause(TrainerCallback):
    """Makes a step as long as a step of a larger model."""

    def on_step_end(self, *_, **__):
        import time

        time.sleep(0.02)


def main():
    folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
    torch.manual_seed(0)
    size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = BertForSequenceClassification(BertConfig(vocab_size=50, **size))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            max_steps=80,
            per_device_train_batch_size=8,
            learning_rate=0.001,
            save_steps=20,
            logging_steps=1,
            save_only_model=args.fault == "optimizer",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Sentences(),
        callbacks=[Pause()],
    )
    last = get_last_checkpoint(folder)
    trainer.train(resume_from_checkpoint=None if args.fault == "never-loads" else last)


if __name__ == "__main__":
    main()
