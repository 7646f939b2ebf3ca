"""Test the assignment of requests to endpoints: shares, groups and returned requests.

There is no I/O in these tests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.llm.calls import Request
from untold.udfs.llm.channels import MOST_BEHIND, MOST_RETURNED, SharedQueue, group_of
from untold.udfs.llm.keys import Stage


def make(weights: Sequence[float], groups: Sequence[int]) -> SharedQueue:
    """Return a queue with groups of the given sizes. The id of a request starts with its group."""
    queue = SharedQueue(weights, lambda request: request.unit)
    queue.extend(Request(f"{group}-{n}", {}, str(group)) for group, size in enumerate(groups) for n in range(size))
    return queue


def take(queue: SharedQueue, able: Sequence[int]) -> tuple[int, Request] | None:
    """Return the next request of the loop and its endpoint if only these endpoints can send."""
    found = ((number, queue.take(number, able, able)) for number in queue.order(able))
    return next(((number, request) for number, request in found if request), None)


STAGE = Stage("s", ("text",), model="m", template="{{ text }}")
WEIGHTS = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=5)
GROUPS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(weights=WEIGHTS, groups=GROUPS, data=st.data())
def test_every_request_is_taken_once_for_all_sets_of_endpoints(
    weights: Sequence[float], groups: Sequence[int], data: st.DataObject
) -> None:
    queue, taken = make(weights, groups), list[str]()
    numbers = range(len(weights))
    while queue:
        able = data.draw(st.lists(st.sampled_from(numbers), min_size=1, unique=True))
        found = take(queue, able)
        # If only one of the endpoints can send, it gets a request
        assert found is not None
        taken.append(found[1].request_id)
    assert len(taken) == len(set(taken)) == sum(groups)
    assert (len(queue), queue.rows, list(queue)) == (0, 0, [])


@given(weights=WEIGHTS, groups=st.lists(st.integers(1, 40), min_size=30, max_size=60))
def test_shares_equal_the_weights_if_all_endpoints_can_send(weights: Sequence[float], groups: Sequence[int]) -> None:
    queue, counts = make(weights, groups), Counter[int]()
    while found := take(queue, range(len(weights))):
        counts[found[0]] += 1
    for number, weight in enumerate(weights):
        share = weight / sum(weights) * sum(groups)
        assert abs(counts[number] - share) <= 0.02 * sum(groups) + 2


@pytest.mark.parametrize("size", [2, 10, 50])
def test_a_group_is_sent_to_one_endpoint(size: int) -> None:
    queue, places = make([1.0, 1.0, 1.0], [size] * 60), defaultdict[str, set[int]](set)
    while found := take(queue, [0, 1, 2]):
        places[found[1].unit].add(found[0])
    assert sum(len(one) > 1 for one in places.values()) <= 3


def test_queues_of_several_actors_give_a_group_to_the_same_endpoint() -> None:
    random, places = Random(0), defaultdict[int, set[int]](set)
    for _ in range(3):
        # Each queue has a part of every group in a different order
        queue = SharedQueue([1.0, 1.0, 1.0], group_of(STAGE))
        requests = [Request(f"{group}-{n}", {"text": f"t{group}"}, "u") for group in range(300) for n in range(5)]
        random.shuffle(requests)
        queue.extend(requests)
        while found := take(queue, [0, 1, 2]):
            places[int(found[1].request_id.split("-")[0])].add(found[0])
    assert sum(len(one) == 1 for one in places.values()) >= 0.9 * len(places)


def test_prompts_with_one_shared_beginning_are_divided() -> None:
    queue, counts = make([1.0, 3.0], [400]), Counter[int]()
    while found := take(queue, [0, 1]):
        counts[found[0]] += 1
    assert counts == {0: pytest.approx(100, abs=4), 1: pytest.approx(300, abs=4)}


def test_a_small_weight_is_a_small_share() -> None:
    queue, counts = make([1.0, 100.0], [1] * 3030), Counter[int]()
    while found := take(queue, [0, 1]):
        counts[found[0]] += 1
    assert counts[0] == pytest.approx(30, abs=2)


def test_one_endpoint_has_a_plain_queue() -> None:
    queue = make([1.0], [3])
    first = queue.take(0, [0], [0])
    assert first is not None
    queue.give_back(first, 0)
    assert [one.request_id for one in queue] == ["0-0", "0-1", "0-2"]
    assert [request.request_id for _, request in iter(lambda: take(queue, [0]), None)] == ["0-0", "0-1", "0-2"]


def test_a_returned_request_is_sent_elsewhere_before_new_requests() -> None:
    queue = make([1.0, 1.0], [3, 3])
    request = queue.take(0, [0, 1], [0, 1])
    assert request is not None
    queue.give_back(request, 0)
    assert queue.take(0, [0, 1], [0, 1]) is not request
    assert queue.take(1, [0, 1], [0, 1]) is request


def test_a_returned_request_is_sent_to_the_same_endpoint_if_no_other_is_left() -> None:
    queue = make([1.0, 1.0], [1])
    request = queue.take(0, [0, 1], [0, 1])
    assert request is not None
    queue.give_back(request, 0)
    assert queue.take(0, [0], [0, 1]) is None
    assert queue.take(0, [0], [0]) is request


def test_an_endpoint_whose_answers_are_of_no_use_gets_no_more_for_a_while() -> None:
    queue = make([1.0, 1.0], [1000])
    for _ in range(MOST_RETURNED):
        request = queue.take(0, [0], [0, 1])
        assert request is not None
        queue.give_back(request, 0)
    assert queue.take(0, [0], [0, 1]) is None
    assert queue.take(0, [0], [0]) is not None


def test_an_endpoint_that_comes_back_does_not_get_all_that_it_missed() -> None:
    queue = make([1.0, 1.0], [1] * 5000)
    for _ in range(1000):
        take(queue, [0])
    counts = Counter(found[0] for found in (take(queue, [0, 1]) for _ in range(1000)) if found)
    assert counts[1] - counts[0] <= MOST_BEHIND + 1


def test_a_group_shares_the_first_variable_of_the_prompt() -> None:
    stage = Stage("s", ("text", "query"), model="m", template="{{ query }} {{ text }}")
    key = group_of(stage)
    same = [key(Request("r", {"query": ["a"], "text": text}, "unit")) for text in "xy"]
    assert same[0] == same[1] != key(Request("r", {"query": ["b"], "text": "x"}, "unit"))
