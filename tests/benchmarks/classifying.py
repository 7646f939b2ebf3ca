"""Measure classified pairs per second and core within a task, including files, against a bare loop of onnxruntime.

The model is a BERT with random weights in single precision, or with int8 weights (`quantize_dynamic`): 6 layers, 384
dimensions, 12 heads, 22.7 million parameters, as in small models for natural language inference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
import onnxruntime
import pyarrow as pa
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic
from tokenizers import Tokenizer

from tests.benchmarks.embedding import GOAL, REPETITIONS, answer, facts
from tests.benchmarks.figures import Figure, Options
from tests.udfs.retrieval.onnx_files import save
from untold.jobs.inference.stage.bindings import bind_lookup
from untold.jobs.settings.model import Settings
from untold.udfs.retrieval.classifying import MOST_TOKENS

PAIRS = 300
LAYERS, WIDTH, HEADS, INNER, VOCABULARY, PLACES = 6, 384, 12, 1536, 30522, 512
LABELS = ("entailment", "neutral", "contradiction")
Pair = tuple[str, str]
# Returns the logits of pairs, in the groups that run together
Run = Callable[[], list[np.ndarray]]


def measure(options: Options) -> list[Figure]:
    """Measure each precision with the loop and the task, with one thread, and the effect of batches for int8."""
    pairs = texts_of(PAIRS)
    with TemporaryDirectory(prefix="untold-") as place:
        single, quantised = Path(place) / "fp32", Path(place) / "int8"
        write_bert(single)
        write_quantised(single, quantised)
        return [*_compare("fp32", single, pairs), *_compare("int8", quantised, pairs)]


def _compare(name: str, folder: Path, pairs: list[Pair]) -> list[Figure]:
    alone, grouped, ours = [], [], []
    for _ in range(REPETITIONS):
        alone.append(rate(pairs, bare_loop(folder, [[pair] for pair in pairs])))
        grouped.append(rate(pairs, bare_loop(folder, of_one_length(folder, pairs))))
        ours.append(rate(pairs, in_task(folder, pairs)))
    ratios = tuple(one / other for one, other in zip(ours, alone, strict=True))
    return [
        Figure(f"{name}, a bare loop, pair by pair", tuple(alone), "pairs/s"),
        Figure(f"{name}, a bare loop, pairs of one length together", tuple(grouped), "pairs/s"),
        Figure(f"{name}, in a task", tuple(ours), "pairs/s"),
        Figure(f"{name}, in a task against a bare loop, pair by pair", ratios, at_least=GOAL),
        *drift(name, folder, pairs),
    ]


def drift(name: str, folder: Path, pairs: list[Pair]) -> list[Figure]:
    """Measure how many pairs have other logits in a batch of their length than in a single run, and by how much."""
    groups = of_one_length(folder, pairs)
    alone = np.concatenate(bare_loop(folder, [[pair] for group in groups for pair in group])())
    together = np.concatenate(bare_loop(folder, groups)())
    changed = (alone != together).any(axis=1)
    largest = float(np.abs(alone - together).max() / alone.std())
    return [
        Figure(f"{name}, pairs with other bits beside others of their length", (float(changed.mean()),)),
        Figure(f"{name}, largest change of a logit, in standard deviations of all", (largest,)),
    ]


def texts_of(count: int) -> list[Pair]:
    """Return pairs of short facts."""
    found, random = facts(), Random(3)
    return [(random.choice(found), random.choice(found)) for _ in range(count)]


def rate(pairs: Sequence[Pair], run: Callable[[], object]) -> float:
    """Return pairs per second of processor time, without the time to open the model."""
    began = process_time()
    run()
    return len(pairs) / (process_time() - began)


def open_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MOST_TOKENS, strategy="only_first")
    return tokenizer


def of_one_length(folder: Path, pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return the pairs grouped by their number of tokens."""
    tokenizer, groups = open_tokenizer(folder), dict[int, list[Pair]]()
    for pair in pairs:
        groups.setdefault(len(tokenizer.encode(*pair)), []).append(pair)
    return list(groups.values())


def bare_loop(folder: Path, groups: Sequence[Sequence[Pair]]) -> Run:
    """Return a bare loop of onnxruntime: the logits of groups of pairs with one length."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    tokenizer = open_tokenizer(folder)

    def run() -> list[np.ndarray]:
        found = []
        for group in groups:
            encoded = [tokenizer.encode(*pair) for pair in group]
            ids, types = (np.array([getattr(one, name) for one in encoded]) for name in ("ids", "type_ids"))
            found.append(session.run(None, {"input_ids": ids, "token_type_ids": types})[0])
        return found

    return run


def in_task(folder: Path, pairs: Sequence[Pair]) -> Callable[[], None]:
    """Return the work of a task in a run, including keys, batches and files."""
    stage = bind_lookup("classify_entailment", Settings.model_validate({"nli": {"classifier": str(folder)}}))
    rows = [{"request_id": str(number), "premise": p, "hypothesis": h} for number, (p, h) in enumerate(pairs)]
    batch = pa.RecordBatch.from_pylist(rows)
    answer(batch.slice(0, 1), stage)
    return lambda: answer(batch, stage)


def write_quantised(source: Path, folder: Path) -> None:
    """Write the model of a folder with int8 weights, created by onnxruntime."""
    write_names(folder)
    quantize_dynamic(str(source / "model.onnx"), str(folder / "model.onnx"))


def write_names(folder: Path) -> None:
    """Write the tokenizer of BERT, and the classes."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = resources.files("untold.conf").joinpath("minilm", "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(tokenizer)
    names = {str(number): label for number, label in enumerate(LABELS)}
    (folder / "config.json").write_text(json.dumps({"id2label": names}), encoding="utf-8")


def write_bert(folder: Path) -> None:
    """Write a BERT with random weights and a class head on its first token."""
    write_names(folder)
    graph = _Graph()
    words = graph.node("Gather", graph.weights(VOCABULARY, WIDTH), "input_ids")
    kinds = graph.node("Gather", graph.weights(2, WIDTH), "token_type_ids")
    shape = graph.node("Shape", "input_ids")
    length = graph.node("Gather", shape, graph.constant(np.array([1])))
    places = graph.node("Slice", graph.weights(PLACES, WIDTH), graph.constant(np.array([0])), length)
    state = graph.normed(graph.node("Add", graph.node("Add", words, kinds), places))
    for _ in range(LAYERS):
        state = graph.normed(graph.node("Add", state, graph.attention(state)))
        inner = graph.gelu(graph.linear(state, WIDTH, INNER))
        state = graph.normed(graph.node("Add", state, graph.linear(inner, INNER, WIDTH)))
    first = graph.node("Gather", state, graph.constant(np.array(0)), axis=1)
    logits = graph.linear(graph.node("Tanh", graph.linear(first, WIDTH, WIDTH)), WIDTH, len(LABELS))
    graph.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "token_type_ids")
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(LABELS)])]
    save(folder, graph.nodes, inputs, outputs, graph.constants)


class _Graph:
    """Nodes and constants of a graph, with consecutive names."""

    def __init__(self) -> None:
        self.nodes: list = []
        self.constants: list = []
        self._random = np.random.default_rng(4)

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"node_{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def constant(self, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(value, f"constant_{len(self.constants)}"))
        return str(self.constants[-1].name)

    def weights(self, *shape: int) -> str:
        return self.constant(self._random.normal(0, 0.05, shape).astype(np.float32))

    def linear(self, state: str, size: int, width: int) -> str:
        return self.node("Add", self.node("MatMul", state, self.weights(size, width)), self.weights(width))

    def normed(self, state: str) -> str:
        ones, zeros = (self.constant(np.full(WIDTH, value, np.float32)) for value in (1, 0))
        return self.node("LayerNormalization", state, ones, zeros, axis=-1)

    def gelu(self, state: str) -> str:
        root, one, half = (self.constant(np.array(value, np.float32)) for value in (2**-0.5, 1, 0.5))
        risen = self.node("Add", self.node("Erf", self.node("Mul", state, root)), one)
        return self.node("Mul", self.node("Mul", state, risen), half)

    def attention(self, state: str) -> str:
        split = self.constant(np.array([0, 0, HEADS, WIDTH // HEADS]))
        orders = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
        query, key, value = (
            self.node("Transpose", self.node("Reshape", self.linear(state, WIDTH, WIDTH), split), perm=order)
            for order in orders.values()
        )
        scale = self.constant(np.array((WIDTH // HEADS) ** -0.5, np.float32))
        shares = self.node("Softmax", self.node("Mul", self.node("MatMul", query, key), scale), axis=-1)
        heads = self.node("Transpose", self.node("MatMul", shares, value), perm=[0, 2, 1, 3])
        return self.linear(self.node("Reshape", heads, self.constant(np.array([0, 0, WIDTH]))), WIDTH, WIDTH)
