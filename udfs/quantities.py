"""Compare quantities in answers: which of two is larger, or whether they are equal within their rounding."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import product
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pint import UnitRegistry

Outcome = Literal["equal", "first_larger", "second_larger", "incomparable"]

# Characters. A longer text is a sentence, and the limit bounds the time for matching
MAX_LENGTH = 200
# The limit prevents that rounding to one digit, 14,816 km to 10,000 km, counts as equal (methods, section 3)
TOLERANCE = Fraction(3, 100)

TOO_LONG = "text too long"
NOT_PLAIN = "not a plain quantity"
UNKNOWN_UNIT = "unknown unit"
AMBIGUOUS = "ambiguous"
ONE_UNIT = "only one has a unit"
DIFFERENT_CURRENCIES = "different currencies"
DIFFERENT_DIMENSIONS = "different dimensions"

# Limits: factors in a unit, and words in a name (imperial fluid ounce). Short symbols depend on case, longer words also
# match in lower case
_MAX_FACTORS = 4
_MAX_PHRASE = 3
_LONGEST_SYMBOL = 3
_CACHED_UNITS = 4096

_MAGNITUDES = {"thousand": 3, "million": 6, "billion": 9, "bn": 9, "trillion": 12}
# Next to a currency sign these letters cannot be a unit
_MONEY_MAGNITUDES = {**_MAGNITUDES, "k": 3, "m": 6, "mn": 6, "b": 9, "tn": 12}
# All forms of one name are one unit. "$" means "US$", because no other dollar is supported. "¥" may be yen or yuan
_CURRENCY_FORMS = (
    "$|US$|USD|dollar|dollars|US dollar|US dollars",
    "€|EUR|euro|euros",
    "£|GBP|pound sterling|pounds sterling|British pounds",
    "¥",
    "JPY|yen",
    "CNY|RMB|yuan",
)
_CURRENCIES = {form: forms for forms in _CURRENCY_FORMS for form in forms.casefold().split("|")}
_SIGNS = "|".join(re.escape(form) for forms in _CURRENCY_FORMS for form in forms.split("|") if form == form.upper())

# Words with several meanings in Pint or in common usage, by their singular
_TONS = ("ton", "long_ton", "metric_ton")
_GALLONS = ("gallon", "imperial_gallon")
_OUNCES = ("ounce", "troy_ounce", "fluid_ounce", "imperial_fluid_ounce")
_BARRELS = ("barrel", "oil_barrel", "beer_barrel", "imperial_barrel")
_READINGS = {
    **{f"{prefix}ton": tuple(prefix + ton for ton in _TONS) for prefix in ("", "kilo", "mega", "giga")},
    **{name: (name, f"imperial_{name}") for name in ("quart", "pint", "cup", "fluid_ounce")},
    "gallon": _GALLONS,
    "gal": _GALLONS,
    "fl_oz": ("fluid_ounce", "imperial_fluid_ounce"),
    "ounce": _OUNCES,
    "oz": _OUNCES,
    "barrel": _BARRELS,
    "bbl": _BARRELS,
    "mile": ("mile", "nautical_mile"),
    "C": ("coulomb", "degree_Celsius"),
    "F": ("farad", "degree_Fahrenheit"),
    "calorie": ("calorie", "kilocalorie"),
    "kt": ("knot", "kilometric_ton"),
}
# Forms that Pint does not have, or has for another unit. Case does not matter
_ALIAS_FORMS = (
    "astronomical_unit au",
    "centimeter cm",
    "decayear decade",
    "degree °",
    "degree_Celsius degree_c degrees_c deg_c degree_celsius degrees_celsius",
    "degree_Fahrenheit degree_f degrees_f deg_f degree_fahrenheit degrees_fahrenheit",
    "fluid_ounce us_fluid_ounce us_fl_oz",
    "gallon us_gallon",
    "gram gramme",
    "kilogram kg kilogramme",
    "kilometer km",
    "kilometer_per_hour kmh kmph",
    "metric_horsepower ps",
    "mile statute_mile",
    "square_foot sqft",
)
_ALIASES = {form: name for name, *forms in map(str.split, _ALIAS_FORMS) for form in forms}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_AFTER = {"squared": 2, "cubed": 3}
_SYMBOLS = frozenset("mgshdKAVWJNTLltHΩÅ%‰")
_NO_UNITS = frozenset({"am", "pm", "as", "at", "st", "nd", "rd", "th", "per"})
_PREFIXED = re.compile(
    "(?:da|[YZEPTGMkhdcmμnpf]|[KMGTP]i)"
    "(?:m|g|s|A|K|mol|cd|N|Pa|J|W|V|F|C|H|Ω|S|T|Wb|lm|lx|Hz|Bq|Gy|Sv|L|l|t|eV|B|bit|bar|Wh|Ah|cal|mHg|yr|pc)"
)

_SUPERSCRIPT = re.compile("⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_PLAIN_DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_PLAIN_CHARACTERS = str.maketrans(
    {"−": "-", "º": "°", "˚": "°", "℃": "°C", "℉": "°F", "％": "%", "×": "x", "⋅": "·", "∙": "·", "’": "'"}
    | {"\N{KELVIN SIGN}": "K", "\N{OHM SIGN}": "Ω", "\N{ANGSTROM SIGN}": "Å", "\N{MICRO SIGN}": "μ"}
)
_LETTER = "[A-Za-zμΩÅ°%‰$€£¥₹]"
_POWER = r"(?:(?:\^|\*\*)-?[1-4]|[23])?"
_PER_CENT = re.compile(r"\bper ?cent\b", re.IGNORECASE)
_DEGREE_SIGN = re.compile(r"° (?=[CFK]\b)")
_TEXT = re.compile(
    rf"""(?P<minus>-)? (?:(?P<sign>(?i:{_SIGNS}))\ ?)?
    (?P<digits>[1-9][0-9]{{0,2}}(?P<gap>[,\ '])[0-9]{{3}}(?:(?P=gap)[0-9]{{3}})*|[0-9]+|(?=\.[0-9]))
    (?:\.(?P<decimals>[0-9]+))?
    (?:(?:[eE]\+?|\ ?[x·*]\ ?10(?:\^|\*\*))(?P<power>-?[0-9]{{1,2}})(?![0-9]))?
    (?!(?:s|st|nd|rd|th)\b)\ ?(?P<rest>(?:{_LETTER}+{_POWER}(?:(?:\ ?[·*/]\ ?|[ -]){_LETTER}+{_POWER})*)?)""",
    re.VERBOSE,
)
_PER = re.compile(r" ?/ ?| per ")
_WORD = re.compile(rf"({_LETTER}+)(?:\^|\*\*)?(-?[1-4])?")

_lock = Lock()


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_quantities`: the outcome, and a short reason if two texts are incomparable."""

    outcome: Outcome
    reason: str | None = None

    def to_json(self) -> str:
        """Return the result of the tool: an object with `outcome`, and with `reason` if it is set.

        >>> Comparison("incomparable", UNKNOWN_UNIT).to_json()
        '{"outcome": "incomparable", "reason": "unknown unit"}'
        """
        answer = {"outcome": self.outcome, "reason": self.reason}
        return json.dumps({name: value for name, value in answer.items() if value is not None})


@dataclass(frozen=True)
class _RootUnit:
    """A unit: root units are `scale` times the number plus `offset`. `dimensions` are root units with their powers."""

    scale: Fraction
    dimensions: frozenset[tuple[str, Fraction]]
    offset: Fraction = Fraction(0)


@dataclass(frozen=True)
class _Quantity:
    """A number as written, the value of its last decimal place, the value of its last nonzero place, and its unit.

    `units` has one element per reading of the unit. `magnitude` is the factor of a word such as million.
    """

    number: Fraction
    decimal: Fraction
    digit: Fraction
    magnitude: Fraction
    units: tuple[_RootUnit, ...]

    def scaled(self, unit: _RootUnit) -> _RootUnit:
        """Return a reading of the unit that includes the magnitude."""
        return replace(unit, scale=unit.scale * self.magnitude)


_Factor = tuple[tuple[_RootUnit, ...], int]
_NUMBER = _RootUnit(Fraction(1), frozenset({("number", Fraction(1))}))


def compare_quantities(first: str, second: str) -> Comparison:
    """Compare two texts as physical quantities, within the rounding that they imply (methods, section 3).

    Two numbers are equal if they are numerically equal, or if the more precise number rounds to the other and both are
    within 3 % of the larger. An exact tie rounds to neither side. Within one unit, the decimals are the precision.
    Across units (km and m, or millions and a bare number), the trailing zeros of an integer count as rounding too.

    Texts are incomparable ("ambiguous") if several readings of a unit (gallon, ton) do not all agree, or if two degrees
    are equal as a difference and not as a temperature (2 °C and 3.6 °F). Currencies are never converted. The function
    never raises. A text is `incomparable` unless it is one number with or without a unit, in English notation and at
    most 200 characters.

    >>> compare_quantities("8,000 nmi", "14,800 km").outcome
    'equal'
    """
    one, other = _read(first), _read(second)
    if isinstance(one, str) or isinstance(other, str):
        return Comparison("incomparable", one if isinstance(one, str) else str(other))
    outcomes = {
        _compare_readings(one, left, other, right)
        for left, right in _pair_readings(one, other)
        if left.dimensions == right.dimensions
    }
    if len(outcomes) == 1 and "incomparable" not in outcomes:
        return Comparison(outcomes.pop())
    return Comparison("incomparable", AMBIGUOUS if outcomes else _why_different(one.units[0], other.units[0]))


def is_plain_quantity(text: str) -> bool:
    """Return True if a text is one number with a known unit, `%` or a magnitude word. Never raises.

    >>> [is_plain_quantity(text) for text in ("5 km", "5 million", "5", "about 5 km")]
    [True, True, False, False]
    """
    quantity = _read(text)
    return not isinstance(quantity, str) and (quantity.units != (_NUMBER,) or quantity.magnitude != 1)


def _pair_readings(one: _Quantity, other: _Quantity) -> Iterable[tuple[_RootUnit, _RootUnit]]:
    """Return all pairs of readings. If both quantities have the same unit, both have the same reading."""
    if one.units == other.units:
        return zip(one.units, other.units, strict=True)
    return product(one.units, other.units)


def _compare_readings(one: _Quantity, left: _RootUnit, other: _Quantity, right: _RootUnit) -> Outcome:
    """Compare two quantities under one reading of each. Both readings have the same dimensions."""
    left, right = one.scaled(left), other.scaled(right)
    if left == right:
        return _compare_in_one_unit(one, other)
    outcome = _compare_across(one, left, other, right)
    if outcome != "equal" and (left.offset or right.offset):
        # 2 °C are 35.6 °F as a temperature and 3.6 °F as a difference, and the text does not distinguish them
        rise, other_rise = (replace(unit, offset=Fraction(0)) for unit in (left, right))
        return "incomparable" if _compare_across(one, rise, other, other_rise) == "equal" else outcome
    return outcome


def _compare_in_one_unit(one: _Quantity, other: _Quantity) -> Outcome:
    """Compare numbers of one unit. Only decimals determine the precision."""
    # If two numbers have the same number of decimals, only equal numbers are equal
    coarse = max(one.decimal, other.decimal) if one.decimal != other.decimal else Fraction(0)
    return "equal" if _agree(one.number, other.number, coarse) else _order(one.number, other.number)


def _compare_across(one: _Quantity, left: _RootUnit, other: _Quantity, right: _RootUnit) -> Outcome:
    """Compare numbers of two units. Trailing zeros may be rounding too."""
    # Compare in both units, because values that are close in one unit of temperature may differ in another
    there, back = _convert(one.number, left, right), _convert(other.number, right, left)
    if _agree(there, other.number, other.digit) or _agree(back, one.number, one.digit):
        return "equal"
    return _order(there, other.number)


def _convert(number: Fraction, unit: _RootUnit, target: _RootUnit) -> Fraction:
    """Convert a number from one unit to another, including the zero points. The result is exact."""
    return (number * unit.scale + unit.offset - target.offset) / target.scale


def _agree(one: Fraction, other: Fraction, place: Fraction) -> bool:
    """Return True if numbers are equal, or differ by less than half a `place` and by at most the tolerance."""
    difference, largest = abs(one - other), max(abs(one), abs(other))
    return not difference or (difference < place / 2 and difference <= TOLERANCE * largest)


def _order(one: Fraction, other: Fraction) -> Outcome:
    """Return the outcome for two different numbers."""
    return "first_larger" if one > other else "second_larger"


def _why_different(left: _RootUnit, right: _RootUnit) -> str:
    """Return the reason why two quantities without a common dimension cannot be compared."""
    if _NUMBER.dimensions in (left.dimensions, right.dimensions):
        return ONE_UNIT
    names = {name for unit in (left, right) for name, _ in unit.dimensions}
    return DIFFERENT_CURRENCIES if len(names) == 2 and names <= {*_CURRENCY_FORMS} else DIFFERENT_DIMENSIONS


def _read(text: str) -> _Quantity | str:
    """Return the quantity, or the reason why there is none."""
    if len(text) > MAX_LENGTH:
        return TOO_LONG
    match = _TEXT.fullmatch(_write_plainly(text))
    if not match:
        return NOT_PLAIN
    sign = match["sign"]
    magnitude, rest = _split_magnitude(match["rest"], _MONEY_MAGNITUDES if sign else _MAGNITUDES)
    if sign and rest:
        return NOT_PLAIN
    units = _read_units(sign or rest)
    if not units:
        return UNKNOWN_UNIT
    return _number(match, Fraction(10) ** magnitude, units)


def _write_plainly(text: str) -> str:
    """Normalise spaces, signs and superscripts. NFKC is not used: it reads 5½ as 51⁄2 and 10⁶ as 106."""
    plain = " ".join(text.translate(_PLAIN_CHARACTERS).split())
    plain = _SUPERSCRIPT.sub(lambda match: "^" + match[0].translate(_PLAIN_DIGITS), plain)
    plain = _DEGREE_SIGN.sub("°", _PER_CENT.sub("%", plain))
    return plain.removesuffix(".").rstrip()


def _split_magnitude(rest: str, magnitudes: dict[str, int]) -> tuple[int, str]:
    """Return the power of ten of a leading magnitude word (0 without one) and the rest of the text."""
    word, _, others = rest.partition(" ")
    power = magnitudes.get(word.lower())
    return (0, rest) if power is None else (power, others)


def _number(match: re.Match[str], magnitude: Fraction, units: tuple[_RootUnit, ...]) -> _Quantity:
    """Return the quantity of a match, with its number as an exact fraction."""
    digits = re.sub("[^0-9]", "", match["digits"])
    decimals = match["decimals"] or ""
    decimal = Fraction(10) ** (int(match["power"] or 0) - len(decimals))
    number = int(digits + decimals) * decimal * (-1 if match["minus"] else 1)
    zeros = 0 if decimals or not digits.strip("0") else len(digits) - len(digits.rstrip("0"))
    return _Quantity(number, decimal, decimal * 10**zeros, magnitude, units)


def _read_units(text: str) -> tuple[_RootUnit, ...]:
    """Return all readings of the text of a unit. A currency is a separate dimension."""
    if not text:
        return (_NUMBER,)
    currency = _CURRENCIES.get(text.casefold())
    if currency:
        return (_RootUnit(Fraction(1), frozenset({(currency, Fraction(1))})),)
    return _read_compound(text)


@lru_cache(_CACHED_UNITS)
def _read_compound(text: str) -> tuple[_RootUnit, ...]:
    """Return all readings of a product of units, none if a part is unknown or two parts have several readings."""
    factors: list[_Factor] = []
    for place, segment in enumerate(_PER.split(text)):
        found = _read_factors([(word, int(power or 1)) for word, power in _WORD.findall(segment)])
        if not found:
            return ()
        factors += [(units, -power if place else power) for units, power in found]
    if len(factors) == 1 and factors[0][1] == 1:
        return factors[0][0]
    if len(factors) > _MAX_FACTORS or sum(len(units) > 1 for units, _ in factors) > 1:
        return ()
    # A zero point, such as 0 degrees Celsius, has no meaning within a product
    choices = [[(unit, power) for unit in units if not unit.offset] for units, power in factors]
    return tuple(_multiply(choice) for choice in product(*choices))


def _read_factors(words: list[tuple[str, int]]) -> list[_Factor]:
    """Return the units of words with their powers. A unit uses the most words that have a common meaning.

    The list is empty if a word has no unit.
    """
    factors: list[_Factor] = []
    while words:
        before = _POWERS.get(words[0][0].lower(), 1) if len(words) > 1 else 1
        words = words[before > 1 :]
        lengths = range(min(_MAX_PHRASE, len(words)), 0, -1)
        # An exponent ends a name of several words
        sizes = [size for size in lengths if all(power == 1 for _, power in words[: size - 1])]
        found = ((size, _read_phrase("_".join(word for word, _ in words[:size]))) for size in sizes)
        size, units = next(((size, units) for size, units in found if units), (0, ()))
        if not units:
            return []
        power, words = words[size - 1][1], words[size:]
        after = _POWERS_AFTER.get(words[0][0].lower(), 1) if words else 1
        words = words[after > 1 :]
        factors.append((units, before * after * power))
    return factors


def _multiply(choice: tuple[tuple[_RootUnit, int], ...]) -> _RootUnit:
    """Return the unit of a product. Dimensions that cancel out are removed, so km/m is only a scale."""
    scale, dimensions = Fraction(1), defaultdict[str, Fraction](Fraction)
    for unit, power in choice:
        scale *= unit.scale**power
        for name, root_power in unit.dimensions:
            dimensions[name] += root_power * power
    return _RootUnit(scale, frozenset((name, power) for name, power in dimensions.items() if power))


def _read_phrase(phrase: str) -> tuple[_RootUnit, ...]:
    """Return the readings of words joined by `_`: as written, in lower case, then in the singular."""
    lower = phrase.lower()
    forms = (phrase, lower, lower.removesuffix("s"))
    for form in forms:
        if form in _READINGS:
            return tuple(unit for name in _READINGS[form] if (unit := _root_unit(name)))
    alias = next((_ALIASES[form] for form in forms if form in _ALIASES), None)
    name = alias or _find_name(phrase) or (_find_name(lower) if len(lower) > _LONGEST_SYMBOL else None)
    return (_root_unit(name),) if name else ()


def _find_name(word: str) -> str | None:
    """Return Pint's name of a unit. Only some symbols accept a short prefix, because "cat" is not a pressure."""
    if word in _NO_UNITS or (len(word) == 1 and word not in _SYMBOLS):
        return None
    with _lock:
        candidates = _registry().parse_unit_name(word)
    if not candidates:
        return None
    prefix, name, _ = candidates[0]
    return prefix + name if word.startswith(prefix) or _PREFIXED.fullmatch(word) else None


@lru_cache(_CACHED_UNITS)
def _root_unit(name: str) -> _RootUnit:
    """Return a unit by its name in Pint. A nonlinear unit, such as the decibel, only compares with itself."""
    try:
        with _lock:
            quantity: Any = _registry().Quantity
            zero, one = (quantity(Fraction(number), name).to_root_units() for number in (0, 1))
    except TypeError:
        return _RootUnit(Fraction(1), frozenset({(name, Fraction(1))}))
    dimensions = frozenset((root, Fraction(power)) for root, power in one.unit_items())
    return _RootUnit(Fraction(one.magnitude - zero.magnitude), dimensions, Fraction(zero.magnitude))


@cache
def _registry() -> UnitRegistry[Any]:
    # Imported here because the import takes a second, and not every process needs it
    from pint import UnitRegistry

    return UnitRegistry(non_int_type=Fraction, cache_folder=None)
