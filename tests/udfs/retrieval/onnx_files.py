"""Tiny models made by `onnx`, and tokenizers of a few words, as folders on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def write_tokenizer(folder: Path, words: list[str]) -> None:
    """A tokenizer of whole words with BERT's special tokens around texts and pairs, which pads and cuts by itself."""
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
    """A model whose hidden state of a token is its row of a table [tokens, dimension].

    `quantised`: rounded to 8 bits of what is largest among all texts of the batch.
    """
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    states = helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "sequence", table.shape[1]])
    nodes = [helper.make_node("Gather", ["rows", "input_ids"], ["found" if quantised else "states"])]
    if quantised:
        nodes.append(helper.make_node("DynamicQuantizeLinear", ["found"], ["bytes", "scale", "zero"]))
        nodes.append(helper.make_node("DequantizeLinear", ["bytes", "scale", "zero"], ["states"]))
    save(folder, nodes, [ids], [states], [numpy_helper.from_array(table.astype(np.float32), "rows")])


def save(folder: Path, nodes: list, inputs: list, outputs: list, constants: list) -> None:
    """Writes a graph as `model.onnx`."""
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / "model.onnx"))
