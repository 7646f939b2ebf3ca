"""Measure embedded texts per second and core within a task, including files, against a bare loop of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
import onnxruntime
import pyarrow as pa
from tokenizers import Tokenizer

from tests.benchmarks.figures import Figure, Options
from untold.jobs.inference.stage.bindings import bind_lookup
from untold.jobs.settings.model import Settings
from untold.udfs.retrieval.embedding import answer_in_task, find_model

REPETITIONS = 3
CHUNKS, CHUNK_WORDS = 60, 128
FACTS, FACT_WORDS = 600, (5, 15)
# The limit of the model, and of `embeddings.max_tokens`
MOST_TOKENS = 256
GOAL = 0.8
_WORDS = (Path(__file__).resolve().parents[2] / "LICENSE").read_text(encoding="utf-8").split()


def measure(options: Options) -> list[Figure]:
    """Measure chunks of 128 words and short facts, with the loop and the task in turn, with one thread."""
    figures = []
    for name, texts in (("chunks of 128 words", chunks()), ("short facts", facts())):
        bare, ours = [], []
        for _ in range(REPETITIONS):
            bare.append(rate(texts, bare_loop))
            ours.append(rate(texts, in_task))
        ratios = tuple(one / other for one, other in zip(ours, bare, strict=True))
        figures += [
            Figure(f"{name}, a bare loop", tuple(bare), "texts/s"),
            Figure(f"{name}, in a task", tuple(ours), "texts/s"),
            Figure(f"{name}, in a task against a bare loop", ratios, at_least=GOAL),
        ]
    return figures


def chunks() -> list[str]:
    """Return texts of 128 words."""
    random = Random(1)
    return [" ".join(random.choices(_WORDS, k=CHUNK_WORDS)) for _ in range(CHUNKS)]


def facts() -> list[str]:
    """Return texts with the length of a sentence."""
    random = Random(2)
    return [" ".join(random.choices(_WORDS, k=random.randint(*FACT_WORDS))) for _ in range(FACTS)]


def rate(texts: Sequence[str], embed: Callable[[Sequence[str]], Callable[[], None]]) -> float:
    """Return texts per second of processor time, without the time to open the model."""
    run = embed(texts)
    began = process_time()
    run()
    return len(texts) / (process_time() - began)


def bare_loop(texts: Sequence[str]) -> Callable[[], None]:
    """Return a bare loop of onnxruntime: the mean of the hidden states of each single text."""
    files = find_model("minilm")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(files.model, options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(files.tokenizer)
    tokenizer.no_padding()
    tokenizer.enable_truncation(MOST_TOKENS)

    def run() -> None:
        for text in texts:
            ids = np.array([tokenizer.encode(text).ids])
            feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            session.run(None, feeds)[0].mean(axis=1)

    return run


def in_task(texts: Sequence[str]) -> Callable[[], None]:
    """Return the work of a task in a run, including keys, batches and files."""
    stage = bind_lookup("embed_text", Settings())
    rows = [{"request_id": str(number), "text": text, "kind": "document"} for number, text in enumerate(texts)]
    batch = pa.RecordBatch.from_pylist(rows)
    # The worker's model is open, as it is for all its batches except the first
    answer(batch.slice(0, 1), stage)
    return lambda: answer(batch, stage)


def answer(batch: pa.RecordBatch, stage: object) -> None:
    with TemporaryDirectory(prefix="untold-") as folder:
        for _ in answer_in_task(iter([batch]), stage, folder, "run", 60.0):  # type: ignore[arg-type]
            pass
