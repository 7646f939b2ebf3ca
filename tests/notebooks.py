"""Execute all notebooks in one kernel. Use `python -m tests.notebooks` to write the outputs into the files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = ("results", "compare", "missing", "meta_evaluation", "nightly")
Cells = dict[str, nbformat.NotebookNode]


def path_of(name: str) -> Path:
    """Return the path of a notebook."""
    return FOLDER / f"{name}.ipynb"


def read(path: Path) -> nbformat.NotebookNode:
    """Read a notebook from a file."""
    return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-any-return, no-untyped-call]


def execute(given: Mapping[str, tuple[Path, Path | None]]) -> dict[str, Cells]:
    """Return the code cells with their outputs by id, for each notebook and its run.

    If the run is None, the notebook reads the shipped run. All notebooks share one kernel, which deletes its variables
    before each notebook. A new kernel for each notebook would double the time.
    """
    whole = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    parts = {name: read(path).cells for name, (path, _) in given.items()}
    for name, (_, run) in given.items():
        variable = "os.environ.pop('UNTOLD_RUN', None)" if run is None else f"os.environ['UNTOLD_RUN'] = {str(run)!r}"
        for source in (f"import os; {variable};", "%reset -f"):
            whole.cells.append(nbformat.v4.new_code_cell(source))  # type: ignore[no-untyped-call]
        whole.cells += [nbformat.NotebookNode(cell | {"id": f"{name}-{cell['id']}"}) for cell in parts[name]]
    client = NotebookClient(whole, timeout=300, kernel_name="python3", allow_errors=True, record_timing=False)
    client.execute()
    done = {cell["id"]: cell for cell in whole.cells}
    return {
        name: {cell["id"]: done[f"{name}-{cell['id']}"] for cell in cells if cell["cell_type"] == "code"}
        for name, cells in parts.items()
    }


def text_of(cell: Mapping[str, Any], *kinds: str) -> str:
    """Return the text of a cell: its streams, its errors, and each output in the first of the given types."""
    wanted = kinds or ("text/html", "text/plain")
    texts = []
    for output in cell.get("outputs", ()):
        if output["output_type"] == "error":
            texts.append(f"ERROR {output['ename']}: {output['evalue']}")
        elif "text" in output:
            texts.append(str(output["text"]))
        else:
            texts += [str(output["data"][kind]) for kind in wanted if kind in output["data"]][:1]
    return "".join(texts)


def main() -> None:
    """Write the outputs of the cells into the notebooks."""
    os.environ.pop("UNTOLD_RUN", None)
    executed = execute({name: (path_of(name), None) for name in NAMES})
    for name, cells in executed.items():
        notebook = read(path_of(name))
        for number, cell in enumerate((cell for cell in notebook.cells if cell["cell_type"] == "code"), 1):
            cell.execution_count = number
            cell.outputs = cells[cell["id"]].outputs
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = number
        path_of(name).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
