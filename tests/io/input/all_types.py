"""A column of every Arrow type, and a digest of what row keys, templates and messages make of them.

As a program it prints the digest as a process has it that cannot import pandas, pytz or tzdata.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from typing import Any

import pyarrow as pa

from batchgen.io.input.arrow_values import as_json, as_messages, as_python, as_template_values
from batchgen.prompts.prompt import row_key
from batchgen.spec.user_template import parse_user_template

# Modules whose presence changes what pyarrow returns.
HIDDEN = ("pandas", "pytz", "tzdata", "dateutil")
ZONES = ("UTC", "Z", "+01:00", "Europe/Paris", "No/Such_Zone")
INSTANTS = [0, 1_700_000_000_123_456_789, -1]
PIECES = pa.struct([("when", pa.timestamp("ns", "Europe/Paris")), ("price", pa.decimal128(9, 2)), ("raw", pa.binary())])


def columns() -> dict[str, pa.Array]:
    """Return three values and a null of every type, by the name of the type."""
    counts = {unit: [n // 10**drop for n in INSTANTS] for unit, drop in (("s", 9), ("ms", 6), ("us", 3), ("ns", 0))}
    numbers: list[Any] = [7, 0, 2]
    types: list[tuple[pa.DataType, list[Any]]] = [
        (pa.null(), [None] * 3),
        (pa.bool_(), [True, False, True]),
        *((type, numbers) for type in (pa.int8(), pa.uint16(), pa.int64(), pa.float16(), pa.float32(), pa.float64())),
        *((type, ["a", "", "é"]) for type in (pa.string(), pa.large_string(), pa.string_view())),
        *((type, [b"a", b"", b"bc"]) for type in (pa.binary(), pa.large_binary(), pa.binary_view())),
        (pa.binary(2), [b"ab", b"cd", b"\0\1"]),
        *((type, numbers) for type in (pa.decimal32(5, 1), pa.decimal64(9, 2), pa.decimal128(38, 4))),
        (pa.decimal256(76, 30), numbers),
        (pa.date32(), [0, 19_000, 36_000_000]),
        (pa.date64(), [0, 86_400_000 * 19_000, 1]),
        *((pa.time32(unit), [n % 86_400 for n in counts[unit]]) for unit in ("s", "ms")),
        *((pa.time64(unit), [n % 86_400_000_000 for n in counts[unit]]) for unit in ("us", "ns")),
        *((pa.duration(unit), counts[unit]) for unit in counts),
        *((pa.timestamp(unit, zone), counts[unit]) for unit in counts for zone in (None, *ZONES)),
        (pa.timestamp("s"), [3_093_496_444_800, -(10**15), 10**15]),
        (pa.month_day_nano_interval(), [pa.MonthDayNano([1, -2, 3]), pa.MonthDayNano([0, 0, 0])] * 2),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"]),
        (pa.uuid(), [bytes(range(16))] * 3),
        (pa.json_(), ['{"a": [1, null]}', "[]", '"x"']),
        (pa.bool8(), [1, 0, 1]),
        (pa.fixed_shape_tensor(pa.int32(), [2]), [[1, 2], [3, 4], [5, 6]]),
        (pa.list_(pa.timestamp("ns")), [[1, None], [], [2]]),
        (pa.list_view(pa.date32()), [[1], [], [2]]),
        (pa.list_(pa.duration("ns"), 1), [[1], [2], [3]]),
        (PIECES, [(1, 5, b"x"), (2, 6, b"y"), (3, 7, b"")]),
        (pa.map_(pa.string(), pa.time64("ns")), [[("a", 1)], [], [("b", 2)]]),
    ]
    found = {str(type): make(type, values) for type, values in types}
    assert len(found) >= len(types) - 1  # one type is there twice
    return found


def make(type: pa.DataType, values: list[Any]) -> pa.Array:
    """Return an array of the values, temporal ones given as integers, and a null."""
    if isinstance(type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type, make(type.storage_type, values))
    if pa.types.is_struct(type):
        return pa.StructArray.from_arrays(
            [make(field.type, list(column)) for field, column in zip(type, zip(*values, strict=True), strict=True)],
            fields=list(type),
            mask=pa.array([False, False, False, True]),
        )
    return pa.array([*values[:3], None], type)


def digest() -> str:
    """Hash the keys, the printed texts and the JSON values of all columns."""
    template = parse_user_template("{{ x }}").template
    found = []
    for name, array in columns().items():
        for value, shown in zip(as_python(array), as_template_values(array), strict=True):
            text = "" if shown is None else template.render({"x": shown})
            found.append(f"{name} {row_key(0, value).hex()} {text}")
        found.append(f"{as_json(array)} {as_messages(array)}")
    return sha256("\n".join(found).encode()).hexdigest()


class _Absent:
    """Makes the imports of HIDDEN fail."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(name)


if __name__ == "__main__":
    assert not sys.modules.keys() & set(HIDDEN)
    sys.meta_path.insert(0, _Absent())
    print(digest())
