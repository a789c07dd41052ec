#!/usr/bin/env python3
"""Writes nn/tokens/unicode_classes.cpp and nn/tokens/unicode_compositions.cpp from Python's tables of Unicode.

    python3 tools/unicode_tables.py [FOLDER]

Needs Unicode 16.0: Python 3.14, or the package unicodedata2 16.0.0 in an older one.
"""
import pathlib
import sys
import unicodedata

version = "16.0.0"
if unicodedata.unidata_version != version:
    import unicodedata2 as unicodedata  # the same functions over newer tables
if unicodedata.unidata_version != version:
    sys.exit(f"tools/unicode_tables.py: Unicode {unicodedata.unidata_version}; needed: {version}")

codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
# The property White_Space (PropList.txt), which Python does not have.
spaces = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def class_of(code):
    if code in spaces:
        return 3
    return {"L": 1, "N": 2}.get(unicodedata.category(chr(code))[0], 0)


def runs_of(value_of, bits):
    """Where a value begins to hold, up to the next: start << bits | value."""
    runs, before = [], None
    for code in codes:
        value = value_of(code)
        if value != before:
            runs.append(code << bits | value)
        before = value
    return runs


def array(type_name, name, comment, numbers, form):
    items = [format(number, form) for number in numbers]
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 120:
            lines.append(line)
            line = "   "
        line += f" {item},"
    lines.append(line)
    body = "\n".join(lines)
    return f"// {comment}\nextern const std::array<std::{type_name}, {len(items)}> {name}{{\n{body}\n}};\n"


def file(about, arrays):
    return f"""// {about} of Unicode {version}, made by tools/unicode_tables.py.

#include <thimble/nn/tokens/unicode_tables.h>

// clang-format off
namespace thimble::data::unicode_tables {{

{"".join(array(*a) + chr(10) for a in arrays)}}}  // namespace thimble::data::unicode_tables
"""


singles, pairs = [], []
for code in codes:
    mapping = unicodedata.decomposition(chr(code))
    if not mapping or mapping.startswith("<"):
        continue  # none, or a compatibility one
    parts = [int(part, 16) for part in mapping.split()]
    if len(parts) == 1:
        singles.append(code << 21 | parts[0])
    else:
        composes = unicodedata.normalize("NFC", chr(code)) == chr(code)
        pairs.append((code, *parts, composes))
by_parts = sorted((i for i, pair in enumerate(pairs) if pair[3]), key=lambda i: pairs[i][1:3])

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "nn" / "tokens")
classes = runs_of(class_of, 2)
combining = runs_of(lambda code: unicodedata.combining(chr(code)), 8)
packed = [code << 43 | first << 22 | second << 1 | composes for code, first, second, composes in pairs]
(folder / "unicode_classes.cpp").write_text(file("Classes of characters", [
    ("uint32_t", "class_runs", "start << 2 | class (0 other, 1 letter, 2 number, 3 space), up to the next start.",
     classes, "#x"),
    ("uint32_t", "combining_runs", "start << 8 | canonical combining class, up to the next start.", combining, "#x")]))
(folder / "unicode_compositions.cpp").write_text(file("Canonical decompositions", [
    ("uint64_t", "single_decompositions", "code << 21 | what it decomposes to, by code.", singles, "#x"),
    ("uint64_t", "pair_decompositions", "code << 43 | first << 22 | second << 1 | (1: the pair composes), by code.",
     packed, "#x"),
    ("uint16_t", "compositions", "Places in pair_decompositions of those that compose, by (first, second).",
     by_parts, "d")]))
(folder / "unicode_tables.h").write_text(f"""#pragma once
// Tables of Unicode {version}, made by tools/unicode_tables.py. What their numbers hold stands beside them.

#include <array>
#include <cstdint>

namespace thimble::data::unicode_tables {{

extern const std::array<std::uint32_t, {len(classes)}> class_runs;
extern const std::array<std::uint32_t, {len(combining)}> combining_runs;
extern const std::array<std::uint64_t, {len(singles)}> single_decompositions;
extern const std::array<std::uint64_t, {len(packed)}> pair_decompositions;
extern const std::array<std::uint16_t, {len(by_parts)}> compositions;

}}  // namespace thimble::data::unicode_tables
""")
