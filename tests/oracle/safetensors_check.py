"""Checks FOLDER/ours.safetensors with the reference implementation and saves its tensors as FOLDER/theirs.safetensors.

Exit status: 0 right, 1 wrong, 77 numpy or safetensors is missing.
"""
import sys

try:
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)

folder = sys.argv[1]
expected = {
    "w": np.array([[1, -2], [0.5, 3]], np.float32),
    "steps": np.array(7, np.int64),
    "mask": np.array([True, False, True]),
    "e": np.zeros((0,), np.float16),
}
tensors = load_file(f"{folder}/ours.safetensors")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


with safe_open(f"{folder}/ours.safetensors", "np") as file:
    metadata = file.metadata()
sums = metadata.pop("thimble.crc32c")
assert metadata == {"format": "np"}, metadata
assert sums[8:] == "".join(f"{crc32c(tensors[name].tobytes()):08x}" for name in sorted(tensors)), sums
assert sorted(tensors) == sorted(expected), sorted(tensors)
for name, value in expected.items():
    assert tensors[name].dtype == value.dtype and tensors[name].shape == value.shape, name
    assert np.array_equal(tensors[name], value), name
save_file(expected, f"{folder}/theirs.safetensors", {"format": "np"})
