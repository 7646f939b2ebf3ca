"""Test quantities: the rules of equality for given cases, the symmetry for any text, and rounded conversions."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from untold.udfs import quantities
from untold.udfs.quantities import MAX_LENGTH, Comparison, compare_quantities, is_plain_quantity

SWAPPED = {"first_larger": "second_larger", "second_larger": "first_larger"}

EQUAL = [
    ("8,000 nmi", "14,800 km"),
    ("829.8 m", "2,722 ft"),
    ("0 ℃", "0 degrees Celsius"),
    ("20 C", "20 °C"),
    ("1.5 million", "1,500,000"),
    ("1.5 million", "1,534,000"),
    ("$1.5m", "1.5 million dollars"),
    ("$5", "5 dollars"),
    ("£5bn", "5 billion pounds sterling"),
    ("USD 12.50", "US$12.5"),
    ("25.4 %", "25 per cent"),
    ("5 ppm", "0.0005 %"),
    ("5.1 km", "5 km"),
    ("5.1 km", "5,000 m"),
    ("5 km", "5 kilometres"),
    ("5 KM.", "5,000 metres"),
    ("1,500 km", "1 500 km"),
    ("1,500 km", "1\u202f500 km"),
    ("1'500 km", "1500 km"),
    (".5 km", "0.5 km"),
    ("5 × 10⁶ m", "5,000 km"),
    ("5e6 m", "5,000 km"),
    ("1 acre", "43,560 sq ft"),
    ("9.81 m/s²", "9.81 metres per second squared"),
    ("9.81 m s^-2", "9.81 m/s**2"),
    ("1 kWh", "3.6 MJ"),
    ("10 light-years", "3.07 pc"),
    ("1 AU", "149.6 million km"),
    ("5 foot-pounds", "6.78 N·m"),
    ("1 decade", "10 years"),
    ("3 kΩ", "3,000 ohms"),
    ("5 µm", "5 μm"),
    ("97 m", "0.1 km"),
    ("$5", "US$5"),
    ("$2.04 billion", "US$2 billion"),
    ("100 km²", "38.6 square mi"),
    ("60 mph", "96.6 km/h"),
    ("5 US gallons", "18.9 L"),
    ("5 imperial gallons", "22.7 litres"),
    ("5 statute miles", "8.05 km"),
    ("5 nautical miles", "9.26 km"),
    ("5 short tons", "4,536 kg"),
    ("5 metric tons", "5 tonnes"),
    ("5 oil barrels", "795 L"),
    ("5 troy ounces", "155.5 g"),
    ("5,000 tons", "5 thousand tons"),
    ("5 gallons", "5 gal"),
    ("5 miles", "5.0 miles"),
    ("100 °C", "212 °F"),
    ("37 °C", "98.6 °F"),
    ("20 °C", "68 °F"),
    ("-40 °C", "-40 °F"),
    ("37 C", "98.6 F"),
    ("273 K", "0 °C"),
]
SECOND_LARGER = [
    ("5 kg", "6 kg"),
    ("23 %", "25.4 %"),
    ("-5 °C", "5 °C"),
    ("5 km", "5.4 km"),
    ("5 km", "5,400 m"),
    ("0.5 kg", "1 kg"),
    ("1.5 billion", "2 billion"),
    ("$1.5 million", "$2 million"),
    ("25 percent", "25.5 %"),
    ("25.5 %", "26%"),
    ("25,500 m", "26 km"),
    ("20 °C", "500 °F"),
    ("200 °F", "100 °C"),
    ("2 °C", "40 °F"),
    ("-40 °F", "-20 °C"),
    ("50 kg", "5 tons"),
    ("1,500,000", "1,534,000"),
    ("1,600,000", "2 million"),
    ("0 km", "400 m"),
    ("96.9 m", "0.1 km"),
    ("100.0 km", "101,234 m"),
    ("70 dB", "80 decibels"),
    ("1 gallon", "30 litres"),
    ("$5", "$6 thousand"),
]
INCOMPARABLE = [
    ("5 kg", "5 km", quantities.DIFFERENT_DIMENSIONS),
    ("90 degrees", "90 bits", quantities.DIFFERENT_DIMENSIONS),
    ("70 dB", "70 m", quantities.DIFFERENT_DIMENSIONS),
    ("$5", "5 km", quantities.DIFFERENT_DIMENSIONS),
    ("$5", "5 %", quantities.DIFFERENT_DIMENSIONS),
    ("5 ft2 lb", "5 ft lb", quantities.DIFFERENT_DIMENSIONS),
    ("$5", "€5", quantities.DIFFERENT_CURRENCIES),
    ("50 %", "0.5", quantities.ONE_UNIT),
    ("5", "5 km", quantities.ONE_UNIT),
    ("5 people", "5 people", quantities.UNKNOWN_UNIT),
    ("over 23 %", "25.4 %", quantities.NOT_PLAIN),
    ("9" * (MAX_LENGTH + 1), "5 km", quantities.TOO_LONG),
]
AMBIGUOUS = [
    ("2 °C", "3.6 °F"),
    ("2 C", "3.6 F"),
    ("10 K", "10 °C"),
    ("0 °C", "0 °F"),
    ("5 gallons", "18.9 L"),
    ("5 gallons", "20 L"),
    ("5 tons", "5 tonnes"),
    ("5 barrels", "795 L"),
    ("5 ounces", "142 g"),
    ("5 fl oz", "148 mL"),
    ("5 miles", "8 km"),
    ("100 km²", "38.6 square miles"),
    ("60 miles per hour", "96.6 km/h"),
]
NOT_PLAIN = [
    *("", " ", "km", "%", "five km", "a million", "about 5 km", "~5 km", "at least 5 km", "> 5 km", "5+ km", "+5 %"),
    *("5-6 km", "5–6 km", "5 to 6 km", "5 km to 6 km", "5 ± 1 km", "5 or 6 km", "5 km, 6 km", "6 ft 2 in", "5 h 3 min"),
    *("1/2 km", "½ km", "5½ km", "5 km½", "1,5 km", "1.500,5 km", "1.500.000 km", "0,500 km", "1,50,000 km", "1 50 km"),
    *("1,5000 km", "12:30 h", "1990s", "21st century", "3rd", "5 pm", "5² km", "5 people", "5 cats", "5 km³³"),
    *("5 W/°C", "5 ton cups", "5 /m", "5 m/", "5 m^9", "5 m^-9", "5 m^99999999", "5 m**m", "5 m and"),
    *("$", "$5/kg", "$5 km", "5 million million", "10^6 km", "5 x 10^999 km", "5 (km)", "__import__('os')"),
    *("1e999999", "1e999999 km", "9**9**9", "9**9**9 km", "5 \0 km", "5\0km", "5 k\u200bm", "\u200f5 km", "5 \u202ekm"),
    *("٥ km", "५ km", "\uff15 km", "①km", "5₂ km", "\ud800"),
]
HOSTILE = [
    "9" * 10_000,
    "9" * MAX_LENGTH,
    "1" + ",000" * 49,
    "1" + ",0000" * 39,
    "." * MAX_LENGTH,
    "5 " + "m·" * 98 + "m",
    "5 " + "m/" * 98 + "m",
    "5 " + "ton " * 48,
    "5 " + "square " * 27,
    "5 " + "kilo" * 49,
    "5 " + "a" * 198,
    "5 m" + "^4" * 98,
    "⁻" * MAX_LENGTH,
    "-" * MAX_LENGTH,
    "\0" * 10_000,
    "\u200f" * MAX_LENGTH,
]
# These are exact definitions: meters, kilograms or seconds in one unit.
FAMILIES = [
    {"m": "1", "km": "1000", "mi": "1609.344", "ft": "0.3048", "inches": "0.0254", "nmi": "1852"},
    {"kg": "1", "g": "0.001", "lb": "0.45359237", "tonnes": "1000"},
    {"s": "1", "minutes": "60", "hours": "3600", "days": "86400"},
    {"": "1", "thousand": "1000", "million": "1000000"},
]
TEXTS = st.one_of(
    st.text(max_size=MAX_LENGTH + 5),
    st.text("0123456789.,-+eE^*/·°²⁻ %$€kmsgCFtonx", max_size=30),
    st.builds("{}{}{}".format, st.integers(0, 10**7), st.sampled_from([" ", "", ".5 "]), st.text("kmsg/^2·%° CF")),
    st.sampled_from([text for pair in EQUAL + SECOND_LARGER for text in pair] + NOT_PLAIN),
)


@st.composite
def conversions(draw: st.DrawFn) -> tuple[str, Decimal, str, Decimal]:
    family = draw(st.sampled_from(FAMILIES))
    unit, other = draw(st.permutations(list(family)))[:2]
    number = Decimal(draw(st.integers(101, 99_999))).scaleb(-draw(st.integers(0, 2)))
    return unit, number, other, number * Decimal(family[unit]) / Decimal(family[other])


def round_to_digits(number: Decimal, digits: int) -> Decimal:
    return round(number, digits - 1 - number.adjusted())


@pytest.mark.parametrize(("first", "second"), EQUAL)
def test_equal_within_their_rounding(first: str, second: str) -> None:
    assert compare_quantities(first, second) == compare_quantities(second, first) == Comparison("equal")


@pytest.mark.parametrize(("first", "second"), SECOND_LARGER)
def test_larger(first: str, second: str) -> None:
    assert compare_quantities(first, second) == Comparison("second_larger")
    assert compare_quantities(second, first) == Comparison("first_larger")


@pytest.mark.parametrize(("first", "second", "reason"), INCOMPARABLE)
def test_incomparable_quantities_have_a_reason(first: str, second: str, reason: str) -> None:
    assert compare_quantities(first, second) == compare_quantities(second, first)
    assert json.loads(compare_quantities(first, second).to_json()) == {"outcome": "incomparable", "reason": reason}


@pytest.mark.parametrize(("first", "second"), AMBIGUOUS)
def test_readings_that_disagree_are_ambiguous(first: str, second: str) -> None:
    told = Comparison("incomparable", "ambiguous")
    assert compare_quantities(first, second) == compare_quantities(second, first) == told


def test_an_answer_without_a_reason_is_only_the_outcome() -> None:
    assert json.loads(compare_quantities("5 km", "5 km").to_json()) == {"outcome": "equal"}


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_other_text_is_not_comparable_with_a_quantity(text: str) -> None:
    assert not is_plain_quantity(text)
    assert compare_quantities(text, "5 km").outcome == "incomparable"
    assert compare_quantities(text, text).outcome == "incomparable"


@pytest.mark.parametrize("text", ["5 km", "25.4 %", "-20 °C", "1.5 million", "$5", "5 dollars", "1e99 km"])
def test_a_number_with_a_unit_is_plain(text: str) -> None:
    assert is_plain_quantity(text)


def test_a_bare_number_is_not_plain_but_compares_with_numbers() -> None:
    assert not is_plain_quantity("1999")
    assert compare_quantities("1,999", "1999").outcome == "equal"
    assert compare_quantities("1999", "2 thousand").outcome == "equal"
    assert compare_quantities("1999", "2001").outcome == "second_larger"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_has_an_answer_too(text: str) -> None:
    assert compare_quantities(text, "5 km").outcome == "incomparable"
    assert not is_plain_quantity(text)


@given(TEXTS, TEXTS)
def test_any_two_texts_have_an_outcome_and_swapped_ones_the_swapped(first: str, second: str) -> None:
    comparison, swapped = compare_quantities(first, second), compare_quantities(second, first)
    assert swapped.outcome == SWAPPED.get(comparison.outcome, comparison.outcome)
    assert (comparison.reason is None) == (comparison.outcome != "incomparable")


@given(TEXTS)
def test_a_plain_quantity_equals_itself(text: str) -> None:
    if is_plain_quantity(text):
        assert compare_quantities(text, text).outcome == "equal"


@given(conversions(), st.integers(3, 6))
def test_a_rounded_conversion_equals_the_original(case: tuple[str, Decimal, str, Decimal], digits: int) -> None:
    unit, number, other, converted = case
    rounded = round_to_digits(converted, digits)
    # A tie has no rounded value
    assume(2 * abs(rounded - converted) != Decimal(1).scaleb(converted.adjusted() + 1 - digits))
    assert compare_quantities(f"{number} {unit}", f"{rounded:,f} {other}").outcome == "equal"


@given(conversions(), st.decimals("1.04", "100", places=2))
def test_across_units_more_than_the_tolerance_is_larger(
    case: tuple[str, Decimal, str, Decimal], times: Decimal
) -> None:
    unit, number, other, converted = case
    larger = round_to_digits(converted * times, 6)
    assert compare_quantities(f"{number} {unit}", f"{larger:f} {other}").outcome == "second_larger"


@given(st.decimals("0.001", "9999", places=3), st.integers(0, 2))
def test_in_one_unit_the_number_with_more_decimals_may_round_to_the_other(number: Decimal, places: int) -> None:
    rounded = round(number, places)
    half = Decimal("0.5").scaleb(-places)
    near = number == rounded or (
        abs(number - rounded) < half and abs(number - rounded) <= Decimal("0.03") * max(number, rounded)
    )
    assert (compare_quantities(f"{number} kg", f"{rounded} kg").outcome == "equal") == near
    assert compare_quantities(f"{rounded + half} kg", f"{rounded} kg").outcome == "first_larger"


PLAIN_NUMBERS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.builds("{}.{}".format, st.integers(0, 999), st.integers(0, 999)),
    st.builds("{:,}".format, st.integers(1, 99).map(lambda number: number * 1_000)),
)


@given(st.sampled_from(FAMILIES), PLAIN_NUMBERS, PLAIN_NUMBERS, st.data())
def test_nothing_beyond_the_tolerance_is_equal(
    family: dict[str, str], first: str, second: str, data: st.DataObject
) -> None:
    units = [data.draw(st.sampled_from(sorted(family))) for _ in range(2)]
    outcome = compare_quantities(f"{first} {units[0]}", f"{second} {units[1]}").outcome
    one, other = (
        Fraction(text.replace(",", "")) * Fraction(family[unit])
        for text, unit in zip((first, second), units, strict=True)
    )
    if abs(one - other) > Fraction(3, 100) * max(one, other):
        assert outcome == ("first_larger" if one > other else "second_larger")
    if one == other:
        assert outcome == "equal"


@given(st.integers(1, 10**6), st.sampled_from(sorted(FAMILIES[0])), st.integers(0, 3))
def test_an_exact_tie_rounds_to_neither_side(number: int, unit: str, places: int) -> None:
    whole = Decimal(number * 1_000).scaleb(-places)
    tie = whole + Decimal("0.5").scaleb(-places)
    assert compare_quantities(f"{whole} {unit}", f"{tie} {unit}").outcome == "second_larger"


def test_threads_that_start_together_agree() -> None:
    script = f"""
from concurrent.futures import ThreadPoolExecutor
from untold.udfs.quantities import compare_quantities
pairs = {EQUAL!a} * 4
with ThreadPoolExecutor(8) as pool:
    print({{compare.outcome for compare in pool.map(lambda pair: compare_quantities(*pair), pairs)}})
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "{'equal'}"


def test_units_are_loaded_with_the_first_quantity_only() -> None:
    script = "import sys, untold.udfs.quantities; sys.exit('pint' in sys.modules or 'pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
