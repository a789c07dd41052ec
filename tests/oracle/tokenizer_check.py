"""Hugging Face's `tokenizers` beside ours, on real and hostile text (tests/nn/tokens/tokenizer_oracle_test.cpp).

  tokenizer_check.py make FOLDER TEXT...   trains tokenizers of the forms of GPT-2, Llama 3 and Qwen 2.5 on the files
      TEXT, and writes to FOLDER: NAME.json, their files; `strings`, what to encode; NAME.ids, its tokens; `sequences`,
      tokens to decode at random.
  tokenizer_check.py check FOLDER          holds NAME.ours.json, which ours wrote, against the same tokens, and what
      ours decoded (NAME.decoded) against theirs.

  tokenizer_check.py fixtures TESTS        writes the files of the tests that need no `tokenizers`, to the folder TESTS:
      fuzz/corpus/tokenizer/{gpt2,llama3,qwen2}, small tokenizers, and nn/tokens/expected.json, what they make of
      hostile text.

Lists of bytes are 32-bit sizes (little-endian), each before its bytes. Exit status: 0 right, 1 wrong, 77 `tokenizers`
is missing.
"""
import json
import pathlib
import random
import struct
import sys

try:
    from tokenizers import AddedToken, Regex, Tokenizer
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
with_ends = 500  # strings that are also encoded with the tokens around a text
QWEN2 = LLAMA3.replace("{1,3}", "")


# Characters left out of every text: marks and pairs newer than Unicode 9.0, by which `tokenizers` 0.23 normalizes, and
# letters and numbers newer than 15.0, which utf8proc 2.8 knows.
NEWER = """7fd 897-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1ace 1df6-1dfa a82c 10d24-10d27 10d69-10d6d 10eab-10eac
10efd-10eff 10f46-10f50 10f82-10f85 11070 1133b 11382-113d0 1145e 11839-1183a 11930-11943 119e0 11a34 11a47
11a99 11d42-11d45 11d97 11f41-11f42 105d2 105da 1611e-1612f 16d63-16d69 16ff0-16ff1 1e08f 1e130-1e136 1e2ae
1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef
1c89-1c8a a7cb-a7cd a7da-a7dc 105c0-105f3 10d40-10d65 10d6f-10d85 10ec2-10ec4 11380-11389 1138b 1138e 11390-113b5
113b7 113d1 113d3 116d0-116e3 11bc0-11be0 11bf0-11bf9 13460-143fa 16100-1611d 16130-16139 16d40-16d6c 16d70-16d79
18cff 1ccf0-1ccf9 1e5d0-1e5ed 1e5f0-1e5fa 2ebf0-2ee5d"""
newer = set()
for part in NEWER.split():
    first, _, last = part.partition("-")
    newer.update(range(int(first, 16), int(last or first, 16) + 1))
characters = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c not in newer]


def write_list(path, items):
    path.write_bytes(b"".join(struct.pack("<I", len(item)) + item for item in items))


def read_list(path):
    data, at, items = path.read_bytes(), 0, []
    while at < len(data):
        size = struct.unpack_from("<I", data, at)[0]
        items.append(data[at + 4:at + 4 + size])
        at += 4 + size
    return items


def in_bytes(ids):
    return struct.pack(f"<{len(ids)}I", *ids)


def from_bytes(data):
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def with_pattern(tokenizer, pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])


def make_one(form, text, vocabulary, special):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    if form == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        with_pattern(tokenizer, LLAMA3 if form == "llama3" else QWEN2)
    if form == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def finish(name, tokenizer):
    """Tokens that come after training, and those around a text."""
    if name == "llama3":
        tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
        begin = tokenizer.token_to_id("<|begin_of_text|>")
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B:1",
                                          special_tokens=[("<|begin_of_text|>", begin)])])
    if name == "qwen2":
        tokenizer.add_tokens([AddedToken("<tool>", lstrip=True), AddedToken("<tool>>", normalized=False),
                              AddedToken("Am\u00e9lie", rstrip=True), AddedToken("e\u0301tude")])
        tokenizer.add_special_tokens([AddedToken("<|mask|>", lstrip=True, rstrip=True, special=True)])


def make_all(folder, texts):
    """NAME -> tokenizer, as their files say them."""
    mixed = "".join(text[:300000] for text in texts) + hostile_text(2)
    named = {
        "gpt2": ("gpt2", texts[0], 1500, ["<|endoftext|>"]),
        "gpt2-mixed": ("gpt2", mixed, 5000, []),
        "llama3": ("llama3", mixed, 5000, []),
        "qwen2": ("qwen2", mixed, 5000, ["<|im_start|>", "<|im_end|>"]),
    }
    for name, (form, text, vocabulary, special) in named.items():
        tokenizer = make_one(form, text, vocabulary, special)
        finish(name, tokenizer)
        tokenizer.save(str(folder / f"{name}.json"))
    # Missing merges make `ignore_merges` matter; old files write merges as "a b".
    data = json.loads((folder / "llama3.json").read_text())
    model = data["model"]
    model["merges"] = [" ".join(merge) for i, merge in enumerate(model["merges"]) if i % 7]
    for name, ignores in (("llama3-fewer", False), ("llama3-whole", True)):
        model["ignore_merges"] = ignores
        (folder / f"{name}.json").write_text(json.dumps(data, ensure_ascii=ignores))


def hostile_pieces():
    spaces = [chr(c) for c in [*range(9, 14), 0x1C, 0x1F, 0x20, 0x20, 0x20, 0x85, 0xA0, 0x1680, 0x180E, 0x2000, 0x200A,
                               0x200B, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF]] + ["\r\n", "\n\n", "  ", "\t\t"]
    words = ["a", "the", "The", "I", "'s", "'S", "'t", "'re", "'RE", "'Ve", "'ll", "'LL", "'d", "'M", "'\u017f", "'",
             "\u2019s", "can't", "e\u0301", "\u00e9", "e\u0323\u0301", "e\u0301\u0323", "\u1eb9\u0301", "A\u030a", "\u212b", "\u2126",
             "\uac00", "\u1100\u1161", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958", "\u0915\u093c", "\u0344",
             "\u4f60\u597d", "\uf900", "\U0002f800", "\u3042\u3099", "\u304c", "\u0e01\u0e33", "\u05d0\u05bc", "\ufb2e",
             "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd",
             "\u2764\ufe0f",
             "\u0661\u0662\u0663", "\u00b2", "\u2167", "\u00bd", "\u3007", "0", "12", "123", "1234", "3.14", "1,000", "_",
             "__init__",
             "->", "!!", "...", "\u2026", "\u00ab", "\u20ac", "$", "#!", "//", "\x00", "\x7f", "\u0300", "\u0301\u0316",
             "\ufffd",
             "\ue000", "\U0010ffff", "\ufdd0", "\ufb01", "\u017f", "\u0130", "\u01c5", "\u2460", "\u093f", "\u0d4d"]
    special = ["<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>", "<|mask|>",
               "<tool>", "<tool>>", "<tool>>>", "<|im_", "Amelie", "Am\u00e9lie", "Ame\u0301lie", "\u00e9tude",
               "e\u0301tude", "<|", "|>"]
    return spaces, words, special


def hostile_text(seed, count=20000):
    spaces, words, _ = hostile_pieces()
    some = random.Random(seed)
    return "".join(some.choice(spaces if some.random() < 0.4 else words) for _ in range(count))


def strings_of(texts):
    spaces, words, special = hostile_pieces()
    some = random.Random(1)
    strings = ["", " ", "\n", "\r\n", "'", "a" * 20000, "ab" * 10000, " " * 5000, "\n" * 5000,
               "e" + "\u0301\u0323" * 3000,
               "1" * 5000, "<|im_start|>" * 1000, "\u4f60" * 5000]
    strings += spaces + words + special
    for _ in range(4000):
        kinds = [some.choice([spaces, words, special, words]) for _ in range(some.randrange(1, 30))]
        strings.append("".join(some.choice(kind) for kind in kinds))
    for _ in range(2000):  # random characters near each other, which combine
        base = some.randrange(len(characters))
        near = characters[base:base + 300]
        strings.append("".join(chr(some.choice(near if some.random() < 0.8 else range(0x20, 0x370)))
                               for _ in range(some.randrange(1, 60))))
    # Each character next to letters, digits, spaces, marks and itself; only a few of the sparse planes.
    shown = [c for c in characters if c < 0x32000 or 0xE0000 <= c < 0xE0200 or c % 499 == 0]
    for at in range(0, len(shown), 64):
        strings.append("".join(f"a{c}1{c} \u0301{c}\u0301\n" for c in map(chr, shown[at:at + 64])))
    for text in texts:
        lines = text.splitlines(keepends=True)
        at = 0
        while at < len(lines):
            count = some.randrange(1, 40)
            strings.append("".join(lines[at:at + count]))
            at += 2 * count
        strings.append(text[:100000].replace("\n", "\r\n"))
        strings.append(text[:400000])
    return strings


def make(folder, paths):
    texts = [pathlib.Path(path).read_bytes().decode("utf-8", "replace") for path in paths]
    make_all(folder, texts)
    strings = strings_of(texts)
    write_list(folder / "strings", [string.encode() for string in strings])
    some = random.Random(3)
    sequences = [[some.randrange(1500) for _ in range(some.randrange(40))] for _ in range(2000)]
    write_list(folder / "sequences", [in_bytes(sequence) for sequence in sequences])
    for path in sorted(folder.glob("*.json")):
        tokenizer = Tokenizer.from_file(str(path))
        found = []
        found += [in_bytes(tokenizer.encode(string, add_special_tokens=False).ids) for string in strings]
        found += [in_bytes(tokenizer.encode(string, add_special_tokens=True).ids) for string in strings[:with_ends]]
        write_list(path.with_suffix(".ids"), found)
    print(f"{len(strings)} strings, {sum(map(len, strings))} characters")


def check(folder):
    strings = [string.decode() for string in read_list(folder / "strings")]
    sequences = [from_bytes(data) for data in read_list(folder / "sequences")]
    wrong = 0

    def hold(name, what, number, found, expected):
        nonlocal wrong
        if found == expected:
            return
        wrong += 1
        if wrong < 20:
            print(f"{name}: {what} {number}: expected {expected!r:.300}, found {found!r:.300}")

    for path in sorted(folder.glob("*.ours.json")):
        name = path.name.removesuffix(".ours.json")
        tokenizer = Tokenizer.from_file(str(path))
        expected = read_list(folder / f"{name}.ids")
        for i, string in enumerate(strings):
            found = tokenizer.encode(string, add_special_tokens=False).ids
            hold(name, "ids of string", i, found, from_bytes(expected[i]))
        for i, string in enumerate(strings[:with_ends]):
            found = tokenizer.encode(string, add_special_tokens=True).ids
            hold(name, "ids with ends of string", i, found, from_bytes(expected[len(strings) + i]))
        decoded = read_list(folder / f"{name}.decoded")
        for i, sequence in enumerate(sequences):
            for skips in (False, True):
                text = decoded[2 * i + skips].decode("utf-8", "replace")
                hold(name, "text of sequence", i, text, tokenizer.decode(sequence, skip_special_tokens=skips))
    print(f"{wrong} wrong")
    return 1 if wrong else 0


FIXTURE_TEXT = """In the beginning the tokens were bytes, and the bytes were 256. There's nothing that they'd not write: they're
letters and numbers, as 1999, 2024 and 12345; caf\u00e9, na\u00efve, Cafe\u0301; \u4f60\u597d\u4e16\u754c, \u4f60\u597d;
\U0001f600\U0001f600.

    for (int i = 0; i < 256; ++i) { tokens[i] = i; }\r\n\r\n\tThe merges, the merging and the
merged: the more there are, the fewer the tokens.
"""


def fixtures(tests):
    """Small tokenizers and what they make of some strings."""
    corpus = tests / "fuzz" / "corpus" / "tokenizer"
    corpus.mkdir(parents=True, exist_ok=True)
    spaces, words, special = hostile_pieces()
    some = random.Random(5)
    strings = ["", " ", "\r\n\r\n  \n x", "there's THERE'S there\u017f'\u017f", "the merged 12345 tokens", FIXTURE_TEXT,
               "a" * 300, "caf\u00e9 cafe\u0301 e\u0323\u0301 e\u0301\u0323 \uac00 \u1100\u1161\u11a8"]
    for _ in range(40):
        strings.append("".join(some.choice(some.choice([spaces, words, words, special])) for _ in range(12)))
    expected = []
    for name in ("gpt2", "llama3", "qwen2"):
        tokenizer = make_one(name, FIXTURE_TEXT, 310, ["<|endoftext|>"] if name == "gpt2" else [])
        finish(name, tokenizer)
        data = json.loads(tokenizer.to_str())
        if name == "llama3":
            data["model"]["ignore_merges"] = True
            data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"][:-12]]
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        (corpus / name).write_text(text)
        tokenizer = Tokenizer.from_str(text)
        for string in strings:
            ids = tokenizer.encode(string, add_special_tokens=False).ids
            expected.append({"tokenizer": name, "text": string, "ids": ids,
                             "with_ends": tokenizer.encode(string).ids,
                             "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                             "without_special": tokenizer.decode(ids)})
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in expected)
    (tests / "nn" / "tokens" / "expected.json").write_text(f"[\n{rows}\n]\n")


if __name__ == "__main__":
    where = pathlib.Path(sys.argv[2])
    if sys.argv[1] == "make":
        make(where, sys.argv[3:])
    elif sys.argv[1] == "fixtures":
        fixtures(where)
    else:
        sys.exit(check(where))
