"""Train the judge: a small cross-encoder with the probability that a text states a fact.

    pip install -e '.[engine,judge]'
    python tools/train_judge.py --pairs pairs.jsonl.gz --base all-MiniLM-L6-v2 \\
        --tokenizer conf/minilm/tokenizer.json --out trained

The pairs are JSON Lines with the fields `source`, `text`, `fact` and `label`. A label is `entailment`, `neutral` or
`contradiction`, or, from a source with two classes, `supported` or `not_supported`. The model has three classes. A pair
with one of the two-class labels trains only the probability of entailment.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModel, PreTrainedModel

CLASSES = ("entailment", "neutral", "contradiction")
SUPPORTED, NOT_SUPPORTED = "supported", "not_supported"
# The number of a label in a batch: the classes first, then the two labels of sources with two classes
LABELS = {label: number for number, label in enumerate((*CLASSES, SUPPORTED, NOT_SUPPORTED))}
# Word overlap solves these sources: a quarter of their pairs is enough
SHARES = {"medquad": 0.25, "conjnli_auto": 0.25, "rose_multi": 0.25, "medec": 0.25}
WIDTH_STEP = 16
# More encodings at once take gigabytes
ENCODED_AT_ONCE = 4096


@dataclass(frozen=True)
class Pair:
    """The token ids of a text and a fact, where the fact begins, and the number of the label."""

    ids: NDArray[np.uint16]
    fact_at: int
    label: int


class CrossEncoder(nn.Module):
    """A transformer with a linear layer of three classes over the state of its first token."""

    def __init__(self, encoder: PreTrainedModel) -> None:
        super().__init__()
        self.encoder = encoder
        self.classify = nn.Linear(encoder.config.hidden_size, len(CLASSES))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits of pairs, one row of three each."""
        states = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        return self.classify(states[:, 0])


def read_pairs(
    path: Path, tokenizer: Tokenizer, max_tokens: int, shares: Mapping[str, float], chooser: random.Random
) -> list[Pair]:
    """Return the pairs of a file that fit in `max_tokens`, with the share of each source in `shares`."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if chooser.random() < shares.get(row["source"], 1.0)]
    pairs = []
    for first in range(0, len(rows), ENCODED_AT_ONCE):
        group = rows[first : first + ENCODED_AT_ONCE]
        encoded = tokenizer.encode_batch([(row["text"], row["fact"]) for row in group])
        pairs += [
            Pair(np.array(one.ids, dtype=np.uint16), one.type_ids.index(1), LABELS[row["label"]])
            for row, one in zip(group, encoded, strict=True)
            if len(one.ids) <= max_tokens
        ]
    return pairs


def batches_of(pairs: Sequence[Pair], batch_tokens: int, chooser: random.Random) -> list[list[Pair]]:
    """Return the pairs in batches of one width and one size each, in random order.

    The widths are multiples of `WIDTH_STEP`, so that few shapes occur: a new shape costs a second on a CPU. The last
    pairs of a width that do not fill a batch are left out.
    """
    by_width: dict[int, list[Pair]] = {}
    for pair in pairs:
        by_width.setdefault(width_of(pair), []).append(pair)
    batches = []
    for width, group in sorted(by_width.items()):
        chooser.shuffle(group)
        size = batch_tokens // width
        batches += [group[at : at + size] for at in range(0, len(group) - size + 1, size)]
    chooser.shuffle(batches)
    return batches


def width_of(pair: Pair) -> int:
    """Return the number of tokens of a pair with its padding."""
    return -(-len(pair.ids) // WIDTH_STEP) * WIDTH_STEP


def tensors_of(batch: Sequence[Pair], device: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the input of the model and the labels of a batch."""
    width = width_of(batch[0])
    ids = np.zeros((len(batch), width), dtype=np.int64)
    types, mask = np.zeros_like(ids), np.zeros_like(ids)
    for row, pair in enumerate(batch):
        ids[row, : len(pair.ids)] = pair.ids
        types[row, pair.fact_at : len(pair.ids)] = 1
        mask[row, : len(pair.ids)] = 1
    columns = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    inputs = {name: torch.from_numpy(column).to(device) for name, column in columns.items()}
    return inputs, torch.tensor([pair.label for pair in batch], device=device)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean negative log-likelihood: of a class, or of entailment against both other classes together."""
    logs = torch.log_softmax(logits.float(), dim=-1)
    not_entailed = torch.logsumexp(logs[:, 1:], dim=-1, keepdim=True)
    likelihoods = torch.cat([logs, logs[:, :1], not_entailed], dim=-1)
    return -likelihoods.gather(1, labels[:, None]).mean()


def rate_at(step: int, steps: int, warm: float = 0.06) -> float:
    """Return the factor of the learning rate: a linear rise, then a fall along a cosine to a fiftieth."""
    if step < warm * steps:
        return (step + 1) / (warm * steps)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm * steps) / (steps * (1 - warm))))


def stream(pairs: Sequence[Pair], batch_tokens: int, seed: int) -> Iterator[list[Pair]]:
    """Yield batches without end. The order of an epoch depends on the seed and on the number of the epoch."""
    epoch = 0
    while True:
        yield from batches_of(pairs, batch_tokens, random.Random(f"{seed}-{epoch}"))
        epoch += 1


class Bfloat16Trainer:
    """AdamW over weights of 32 bits for a model that computes in 16 bits.

    The embeddings are not trained: they are half of the weights, and few of their words occur in the pairs.
    """

    def __init__(self, model: CrossEncoder, rate: float) -> None:
        self.model = model
        for name, weight in model.named_parameters():
            weight.requires_grad_("embeddings" not in name)
        self.weights = [weight.detach().clone() for weight in model.parameters() if weight.requires_grad]
        model.to(torch.bfloat16)
        self._computing = [weight for weight in model.parameters() if weight.requires_grad]
        decays = [weight for weight in self.weights if weight.ndim > 1]
        others = [weight for weight in self.weights if weight.ndim <= 1]
        groups = [{"params": decays, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)

    def step(self, inputs: dict[str, torch.Tensor], labels: torch.Tensor, rate: float) -> float:
        """Update the weights with a batch and return its loss."""
        for weight in self._computing:
            weight.grad = None
        loss = loss_of(self.model(**inputs), labels)
        loss.backward()
        for master, weight in zip(self.weights, self._computing, strict=True):
            master.grad = weight.grad.float()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._publish()
        return loss.item()

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        return {"weights": self.weights, "optimizer": self._optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue with the weights and the moments of a checkpoint."""
        for master, saved in zip(self.weights, state["weights"], strict=True):
            master.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])
        self._publish()

    def trained(self) -> dict[str, torch.Tensor]:
        """Return the weights of the model by name, in 32 bits."""
        weights = {name: weight.detach().float() for name, weight in self.model.named_parameters()}
        names = [name for name, weight in self.model.named_parameters() if weight.requires_grad]
        return {**weights, **dict(zip(names, self.weights, strict=True))}

    @torch.no_grad()
    def _publish(self) -> None:
        for master, weight in zip(self.weights, self._computing, strict=True):
            weight.copy_(master)


def train(model: CrossEncoder, pairs: Sequence[Pair], options: argparse.Namespace) -> None:
    """Train for `options.steps` steps, or for `options.epochs` epochs; continue at a checkpoint if there is one."""
    an_epoch = len(batches_of(pairs, options.batch_tokens, random.Random(options.seed)))
    steps = options.steps or round(options.epochs * an_epoch)
    trainer = Bfloat16Trainer(model, options.rate)
    checkpoint, begin = options.out / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=options.device)
        trainer.load(state)
        begin = state["step"]
    print(f"{an_epoch} steps an epoch; steps {begin} to {steps}", flush=True)
    batches = stream(pairs, options.batch_tokens, options.seed)
    started, mean = time.monotonic(), float("nan")
    model.train()
    for step in range(steps):
        batch = next(batches)
        if step < begin:
            continue
        inputs, labels = tensors_of(batch, options.device)
        loss = trainer.step(inputs, labels, options.rate * rate_at(step, steps))
        mean = loss if math.isnan(mean) else 0.98 * mean + 0.02 * loss
        if (step + 1) % 50 == 0 or step + 1 == steps:
            seconds = time.monotonic() - started
            print(f"step {step + 1} of {steps}: loss {mean:.4f}, {seconds:.0f} s", flush=True)
        if (step + 1) % 250 == 0:
            torch.save({**trainer.state(), "step": step + 1}, checkpoint)
    torch.save(trainer.trained(), options.out / "model.pt")


def share_of(text: str) -> tuple[str, float]:
    """Return the source and the share of a text such as `snli=0.25`. Raises ValueError for another form."""
    source, share = text.split("=")
    return source, float(share)


def main() -> None:
    """Read the options, train, and save the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True, help="training pairs, gzipped JSON Lines")
    parser.add_argument("--base", type=Path, required=True, help="folder of the base model, as transformers saves it")
    parser.add_argument("--weights", type=Path, help="weights of an earlier training, to start from")
    parser.add_argument("--tokenizer", type=Path, required=True, help="file tokenizer.json of the base model")
    parser.add_argument("--out", type=Path, required=True, help="folder of the weights and the checkpoint")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--steps", type=int, help="number of steps, in place of epochs")
    parser.add_argument("--max-tokens", type=int, default=256, help="longer pairs are left out")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=1.5e-4, help="highest learning rate of AdamW")
    parser.add_argument(
        "--share", metavar="SOURCE=SHARE", action="append", default=[], type=share_of, help="share of a source's pairs"
    )
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    shares = SHARES | dict(options.share)
    pairs = read_pairs(options.pairs, tokenizer, options.max_tokens, shares, random.Random(options.seed))
    print(f"{len(pairs)} pairs, {sum(len(pair.ids) for pair in pairs)} tokens", flush=True)
    # The fused kernel of attention is slow backwards for heads of 32 numbers, and drop-out is not needed in two epochs
    encoder = AutoModel.from_pretrained(
        options.base,
        add_pooling_layer=False,
        attn_implementation="eager",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = CrossEncoder(encoder).to(options.device)
    if options.weights is not None:
        model.load_state_dict(torch.load(options.weights, map_location=options.device))
    train(model, pairs, options)


if __name__ == "__main__":
    main()
