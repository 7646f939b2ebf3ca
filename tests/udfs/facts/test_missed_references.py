"""Whether a stage of entailment was shown what covers a reference."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.recall.concluding import MISSES, miss_batches, was_shown

TEXTS = st.lists(st.sampled_from(["Bees fly.", "bees fly", "Bees sting", "“Bees sting”", "Honey"]), max_size=4)
FACTS = {"Bees fly.": 1, "bees fly": 1, "Bees sting": 2, "“Bees sting”": 2, "Honey": 3}


@given(TEXTS, st.none() | TEXTS)
def test_facts_that_differ_in_signs_alone_are_one(shown: list[str], covered_by: list[str] | None) -> None:
    seen = {FACTS[text] for text in shown}
    wanted = seen if covered_by is None else {FACTS[text] for text in covered_by}
    assert was_shown(shown, covered_by) == bool(seen & wanted)


def test_nothing_shown_is_a_null_or_an_empty_list() -> None:
    rows = [("m", None, None), ("m", [], ["a"]), ("n", ["A."], ["a"]), ("n", ["b"], None), ("n", ["b"], [])]
    given = pa.RecordBatch.from_pylist(
        [{"method": method, "shown": shown, "covered_by": covered_by} for method, shown, covered_by in rows]
    )
    (found,) = miss_batches([given])
    assert found.schema.equals(MISSES)
    assert found.column("was_shown").to_pylist() == [False, False, True, True, False]
