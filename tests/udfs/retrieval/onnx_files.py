"""Write tiny ONNX models and tokenizers of a few words into folders."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
DOUBT = 0.3


def write_tokenizer(folder: Path, words: list[str]) -> None:
    """Write a tokenizer of whole words with the special tokens of BERT. It pads and truncates texts and pairs."""
    numbers = {word: number for number, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])],
    )
    tokenizer.enable_padding(length=7)
    tokenizer.enable_truncation(7)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_lookup(folder: Path, table: np.ndarray, *, quantised: bool = False) -> None:
    """Write a model. The hidden state of a token is its row in a table [tokens, dimension].

    `quantised`: the values are rounded to 8 bits of the maximum in the batch.
    """
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    states = helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "sequence", table.shape[1]])
    nodes = [helper.make_node("Gather", ["rows", "input_ids"], ["found" if quantised else "states"])]
    if quantised:
        nodes.append(helper.make_node("DynamicQuantizeLinear", ["found"], ["bytes", "scale", "zero"]))
        nodes.append(helper.make_node("DequantizeLinear", ["bytes", "scale", "zero"], ["states"]))
    save(folder, nodes, [ids], [states], [numpy_helper.from_array(table.astype(np.float32), "rows")])


def save(folder: Path, nodes: list, inputs: list, outputs: list, constants: list) -> None:
    """Write a graph as `model.onnx`."""
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / "model.onnx"))


def write_classifier(folder: Path, words: list[str], labels: list[str], doubted: Collection[str] = ()) -> None:
    """Write a classifier. It returns the first class if the premise has all tokens of the hypothesis, or the last
    class.

    The logits are 3 for this class and 0 for the other classes. If all missing tokens are in `doubted`, the logits are
    2.1 for the first class and 0.9 for the last class.
    """
    write_tokenizer(folder, words)
    names = {str(number): label for number, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps({"id2label": names}), encoding="utf-8")
    node = helper.make_node
    nodes = [
        # The tokens of the hypothesis are the tokens of the second text, without the special tokens
        node("Cast", ["token_type_ids"], ["second"], to=TensorProto.FLOAT),
        node("Greater", ["input_ids", "last_special"], ["is_word"]),
        node("Cast", ["is_word"], ["word"], to=TensorProto.FLOAT),
        node("Mul", ["second", "word"], ["asked"]),
        node("Sub", ["one", "second"], ["first"]),
        # Find the tokens that are in the premise: compare all pairs of positions
        node("Unsqueeze", ["input_ids", "axis_1"], ["across"]),
        node("Unsqueeze", ["input_ids", "axis_2"], ["down"]),
        node("Equal", ["across", "down"], ["is_same"]),
        node("Cast", ["is_same"], ["same"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["first", "axis_2"], ["premise"]),
        node("Mul", ["same", "premise"], ["matches"]),
        node("ReduceMax", ["matches", "axis_1"], ["found"], keepdims=0),
        node("Sub", ["one", "found"], ["lost"]),
        node("Gather", ["weights", "input_ids"], ["weight"]),
        node("Mul", ["asked", "lost"], ["absent"]),
        node("Mul", ["absent", "weight"], ["missing"]),
        node("ReduceMax", ["missing", "axis_1"], ["fails"], keepdims=1),
        node("Sub", ["one", "fails"], ["holds"]),
        node("Mul", ["holds", "of_first"], ["if_it_holds"]),
        node("Mul", ["fails", "of_last"], ["if_it_fails"]),
        node("Add", ["if_it_holds", "if_it_fails"], ["logits"]),
    ]
    first, last = np.zeros((1, len(labels)), np.float32), np.zeros((1, len(labels)), np.float32)
    first[0, 0] = last[0, -1] = 3.0
    weights = [1.0] * len(SPECIAL) + [DOUBT if word in doubted else 1.0 for word in words]
    constants = {
        "weights": np.array(weights, np.float32),
        "last_special": np.array(len(SPECIAL) - 1, np.int64),
        "one": np.array(1.0, np.float32),
        "axis_1": np.array([1], np.int64),
        "axis_2": np.array([2], np.int64),
        "of_first": first,
        "of_last": last,
    }
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(labels)])]
    save(folder, nodes, inputs, outputs, [numpy_helper.from_array(value, name) for name, value in constants.items()])
