#!/usr/bin/env python3
"""Writes the seeds of the fuzzing programs to tests/fuzz/corpus.txt, a line per seed, its bytes in base64: small valid
files of every kind, and a few almost valid ones. Needs nothing but Python, and runs only when they change. Those of
the tokenizer are files in tests/fuzz/corpus/tokenizer, written by tests/oracle/tokenizer_check.py."""
import base64
import gzip
import pathlib
import struct

seeds = []


def write(target, name, data):
    seeds.append(f"{target}/{name} {base64.b64encode(data).decode()}\n")


def safetensors(text, data):
    return struct.pack("<Q", len(text)) + text + bytes(data)


def npy(header, data, version=1):
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + data


write("safetensors", "empty", safetensors(b"{}      ", 0))
write("safetensors", "one", safetensors(b'{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}', 24))
write("safetensors", "metadata", safetensors(b'{"__metadata__":{"format":"pt","k":"\\u00e9\\n"}}', 0))
names = ["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64"]
sizes = [1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8]
at, entries = 0, []
for name, size in zip(names, sizes):
    entries.append('"%s":{"dtype":"%s","shape":[%d],"data_offsets":[%d,%d]}' % (name, name, 1, at, at + size))
    at += size
write("safetensors", "every_dtype", safetensors(("{" + ",".join(entries) + "}").encode(), at))
write("safetensors", "scalar_and_empty", safetensors(
    b'{"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"U8","shape":[0,9],"data_offsets":[8,8]}}', 8))
write("safetensors", "twice", safetensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                                          b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', 2))
two = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[%d,%d]}}'
write("safetensors", "two", safetensors(two % (4, 8), 8))
write("safetensors", "overlap", safetensors(two % (3, 7), 7))
write("safetensors", "hole", safetensors(two % (5, 9), 9))
write("safetensors", "trailing", safetensors(two % (4, 8), 9))
write("safetensors", "overflow", safetensors(
    b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,18446744073709551615]}}', 8))
write("safetensors", "deep", safetensors(b'{"a":' + b"[" * 40, 0))
write("safetensors", "long_header", struct.pack("<Q", 2**63) + b"{}")

texts = ('"thimble.generator.seed":"18446744073709551615","thimble.generator.step":"12","thimble.kind":"checkpoint 1",'
         '"thimble.optimizer":"adamw","thimble.rate":"%s","thimble.step_count":"%s"')
tensors = ('"model.w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
           '"optimizer.w.first_moment":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}')


def checkpoint(own, rate, steps, rest):
    return safetensors(('{"__metadata__":{' + own + texts % (rate, steps) + "}," + rest + "}").encode(), 16)


write("checkpoint", "good", checkpoint("", "3f50624dd2f1a9fc", "12", tensors))
write("checkpoint", "own_text", checkpoint('"epoch":"3",', "0000000000000000", "0", tensors))
write("checkpoint", "infinite_rate", checkpoint("", "7ff0000000000000", "12", tensors))
write("checkpoint", "short_rate", checkpoint("", "3f5", "12", tensors))
write("checkpoint", "negative", checkpoint("", "3f50624dd2f1a9fc", "-1", tensors))
write("checkpoint", "large", checkpoint("", "3f50624dd2f1a9fc", "9223372036854775808", tensors))
write("checkpoint", "zeros", checkpoint("", "3f50624dd2f1a9fc", "012", tensors))
write("checkpoint", "other_tensor", checkpoint("", "3f50624dd2f1a9fc", "12", tensors.replace("model.w", "w")))
write("checkpoint", "no_texts", safetensors(("{" + tensors + "}").encode(), 16))

header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
write("npy", "f4", npy(header.ljust(117) + b"\n", bytes(24)))
write("npy", "v2", npy(header + b"\n", bytes(24), 2))
write("npy", "v3", npy(header + b"\n", bytes(24), 3))
write("npy", "scalar", npy(b"{\"shape\": (), 'fortran_order': False, 'descr': '<i8'}\n", bytes(8)))
write("npy", "bool", npy(b"{'descr': '|b1', 'fortran_order': False, 'shape': (4,), }\n", b"\0\1\1\0"))
write("npy", "fortran", npy(header.replace(b"False", b"True") + b"\n", bytes(24)))
write("npy", "bool_2", npy(b"{'descr': '|b1', 'fortran_order': False, 'shape': (4,), }\n", b"\0\1\2\0"))
write("npy", "trailing", npy(header + b"\n", bytes(25)))
write("npy", "overflow", npy(header.replace(b"(2, 3)", b"(4294967296, 4294967296)") + b"\n", bytes(24)))

images = struct.pack(">IIII", 0x803, 2, 2, 3) + bytes(range(12))
labels = struct.pack(">II", 0x801, 3) + b"\0\5\11"
write("idx", "images", images)
write("idx", "labels", labels)
write("idx", "images.gz", gzip.compress(images, mtime=0))
write("idx", "labels.gz", gzip.compress(labels, mtime=0))
write("idx", "stored.gz", gzip.compress(images, 0, mtime=0))
write("idx", "bomb.gz", gzip.compress(images + bytes(100000), mtime=0))
write("idx", "trailing", images + b"x")
write("idx", "trailing.gz", gzip.compress(images, mtime=0) + b"x")
write("idx", "huge", struct.pack(">IIII", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1))
write("idx", "huge.gz", gzip.compress(struct.pack(">IIII", 0x803, 1000, 1000, 1000), mtime=0))

write("tokens", "empty", struct.pack("<256i", 20240520, 1, 0, *[0] * 253))
write("tokens", "four", struct.pack("<256i", 20240520, 1, 4, *[0] * 253) + struct.pack("<4H", 0, 1, 50256, 65535))
write("tokens", "trailing", struct.pack("<256i", 20240520, 1, 1, *[0] * 253) + bytes(3))
write("tokens", "negative", struct.pack("<256i", 20240520, 1, -1, *[0] * 253))

record = bytes([7]) + bytes(i * 7 % 256 for i in range(3072))
write("cifar", "one", record)
write("cifar", "two", record + bytes([9]) + bytes(3072))
write("cifar", "label", bytes([10]) + bytes(3072))

(pathlib.Path(__file__).parent / "corpus.txt").write_text("".join(sorted(seeds)))
