"""Reading which aspects claims cover (Samarinas et al. 2025; methods, section 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from udfs.stages.definitions import Unparsable
from udfs.stages.echoes import past_echoes
from udfs.stages.lists import read_rows, says_none
from udfs.stages.records import Cell, Record, Value, is_empty_list, read_records, unwrapped


@past_echoes
def parse_alignment(completion: str, variables: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """`evidence`: for each of `aspects` the numbers from 1 of the `claims` that cover it, ascending; `[]` uncovered."""
    evidence: list[set[int]] = [set() for _ in variables["aspects"]]
    records = read_records(completion)
    values = unwrapped(records.values, ("topicid",)) if records else []
    if not values and not says_none(read_rows(completion)) and not is_empty_list(records):
        raise Unparsable("no object with a topic and its evidence")
    for value in values:
        topic = _number(value.cell(("topicid", "aspectid", "id")) if isinstance(value, Record) else None)
        claims = value.field(("evidence",)) if isinstance(value, Record) else None
        known = {_number(each) for each in claims if isinstance(each, Cell)} if isinstance(claims, list) else set()
        if 1 <= topic <= len(evidence):
            evidence[topic - 1] |= known & set(range(1, len(variables["claims"]) + 1))
    return {"evidence": [sorted(numbers) for numbers in evidence]}


def _number(value: Value | None) -> int:
    return int(value.text) if isinstance(value, Cell) and value.text.isdecimal() else 0
