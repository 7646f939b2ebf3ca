"""Write the trained judge as ONNX with int8 weights, and fit its temperature on held-back pairs.

    python tools/export_judge.py --weights trained/model.pt --base all-MiniLM-L6-v2 \\
        --tokenizer conf/minilm/tokenizer.json --held-back held_back.jsonl.gz --out conf/judge

The weights have 7 bits, so that processors with and without the instructions VNNI compute the same numbers: products of
8 bits overflow the 16-bit sums of the latter. The command prints the AUC before and after the rounding.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import torch
from judge_measures import area, calibration_error, cascade_threshold
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from scipy.optimize import minimize
from tokenizers import Tokenizer
from torch import nn
from train_judge import CLASSES, CrossEncoder
from transformers import AutoModel

# The window of the judge, in tokens. Longer pairs have several windows
LONGEST = 256


class Exported(nn.Module):
    """The cross-encoder for one pair without padding, with fewer operators than the trained module.

    A layer has one product for queries, keys and values, and the last layer computes only the first token.
    """

    def __init__(self, model: CrossEncoder) -> None:
        super().__init__()
        self.encoder, self.classify = model.encoder, model.classify
        self.heads = model.encoder.config.num_attention_heads
        self.size = model.encoder.config.hidden_size // self.heads
        attentions = [layer.attention.self for layer in model.encoder.encoder.layer]
        self.asking = scaled(attentions[-1].query, self.size**-0.5)
        self.into = nn.ModuleList(
            [joined(scaled(one.query, self.size**-0.5), one.key, one.value) for one in attentions[:-1]]
            + [joined(attentions[-1].key, attentions[-1].value)]
        )

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of a pair [1, 3] for its tokens [1, tokens]."""
        embeddings = self.encoder.embeddings
        states = embeddings.word_embeddings(input_ids) + embeddings.token_type_embeddings(token_type_ids)
        states = embeddings.LayerNorm(states + embeddings.position_embeddings.weight[: input_ids.shape[1]])
        for layer, into in zip(self.encoder.encoder.layer, self.into, strict=True):
            parts = into(states).reshape(-1, into.out_features // (self.heads * self.size), self.heads, self.size)
            *queries, keys, values = parts.permute(1, 2, 0, 3).unbind()
            if not queries:
                states = states[:, :1]
                queries = [self.asking(states).reshape(self.heads, 1, self.size)]
            shares = torch.softmax(torch.matmul(queries[0], keys.transpose(-1, -2)), -1)
            mixed = torch.matmul(shares, values).transpose(0, 1).reshape(1, -1, self.heads * self.size)
            states = layer.attention.output.LayerNorm(layer.attention.output.dense(mixed) + states)
            inner = nn.functional.gelu(layer.intermediate.dense(states))
            states = layer.output.LayerNorm(layer.output.dense(inner) + states)
        return self.classify(states[:, 0])


def joined(*layers: nn.Linear) -> nn.Linear:
    """Return a linear layer that concatenates the outputs of other layers."""
    result = nn.Linear(layers[0].in_features, sum(layer.out_features for layer in layers))
    result.weight.data = torch.cat([layer.weight.data for layer in layers])
    result.bias.data = torch.cat([layer.bias.data for layer in layers])
    return result


def scaled(layer: nn.Linear, factor: float) -> nn.Linear:
    """Return a copy of a linear layer whose outputs are multiplied by a factor."""
    result = joined(layer)
    result.weight.data *= factor
    result.bias.data *= factor
    return result


def export(model: CrossEncoder, exact: Path, path: Path) -> None:
    """Write the model as ONNX: the exact weights, and weights of 7 bits in int8 with a scale per column."""
    ids = torch.randint(1000, 2000, (1, 17))
    types = torch.zeros_like(ids)
    names = ["input_ids", "token_type_ids"]
    torch.onnx.export(
        Exported(model).eval(),
        (ids, types),
        exact,
        input_names=names,
        output_names=["logits"],
        dynamic_axes={name: {1: "tokens"} for name in names},
        dynamo=False,
        opset_version=17,
    )
    extra = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(exact, path, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8, extra_options=extra)


def logits_of(path: Path, tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> NDArray[np.float64]:
    """Return the logits of pairs [pairs, 3]. A run has one pair."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rows = []
    for one in tokenizer.encode_batch(pairs):
        feeds = {"input_ids": np.array([one.ids]), "token_type_ids": np.array([one.type_ids])}
        rows.append(session.run(None, feeds)[0][0])
    return np.array(rows, dtype=np.float64)


def softmax(logits: NDArray[np.float64], temperature: float, shift: float) -> NDArray[np.float64]:
    """Return the probabilities of the classes [pairs, 3]. The first is entailment, whose logit is shifted."""
    exact = logits / temperature + np.array([shift, 0.0, 0.0])
    powers = np.exp(exact - exact.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main() -> None:
    """Read the options, export, calibrate, and write the folder of the judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--weights", "--base", "--tokenizer", "--held-back", "--out"):
        parser.add_argument(name, type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    encoder = AutoModel.from_pretrained(options.base, add_pooling_layer=False, attn_implementation="eager")
    model = CrossEncoder(encoder)
    model.load_state_dict(torch.load(options.weights, map_location="cpu"), strict=False)
    model.eval()
    path = options.out / "model.onnx"
    with TemporaryDirectory() as folder:
        exact = Path(folder) / "exact.onnx"
        export(model, exact, path)
        calibrate(exact, path, options)


def calibrate(exact: Path, path: Path, options: argparse.Namespace) -> None:
    """Fit the temperature and the shift on the held-back pairs, write config.json, and print the measures."""
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with gzip.open(options.held_back, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if len(tokenizer.encode(row["text"], row["fact"])) <= LONGEST]
    holds = np.array([row["label"] in ("supported", "entailment") for row in rows])
    pairs = [(row["text"], row["fact"]) for row in rows]
    logits = logits_of(path, tokenizer, pairs)

    def loss(calibration: NDArray[np.float64]) -> float:
        stated = np.clip(softmax(logits, np.exp(calibration[0]), calibration[1])[:, 0], 1e-9, 1 - 1e-9)
        return float(-np.log(np.where(holds, stated, 1 - stated)).mean())

    best = minimize(loss, np.zeros(2), method="Nelder-Mead").x
    temperature, shift = float(np.exp(best[0])), float(best[1])
    classes = softmax(logits, temperature, shift)
    probabilities = classes[:, 0]
    names = {str(number): label for number, label in enumerate(CLASSES)}
    config = {"id2label": names, "temperature": temperature, "shift": shift}
    (options.out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    before = area(softmax(logits_of(exact, tokenizer, pairs), temperature, shift)[:, 0], holds)
    print(
        f"temperature {temperature:.3f}, shift {shift:.3f}, "
        f"AUC {area(probabilities, holds):.4f} ({before:.4f} before rounding)",
        end=", ",
    )
    print(f"calibration error {calibration_error(probabilities, holds):.4f}, {len(rows)} pairs")
    threshold, share = cascade_threshold(classes, holds)
    print(f"at most 2 % of the pairs are wrong from a certainty of {threshold:.3f} on, which {share:.1%} reach")


if __name__ == "__main__":
    main()
