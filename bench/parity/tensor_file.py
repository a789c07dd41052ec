"""safetensors files of NumPy arrays: a u64 with the length of a JSON header, the header, the bytes."""

import json
import struct

import numpy as np

_NAMES = {"float32": "F32", "float64": "F64", "int64": "I64"}


def save(path, arrays):
    arrays = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    # Larger elements first, so that every tensor is aligned.
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header, end = {}, 0
    for name in order:
        begin, end = end, end + arrays[name].nbytes
        header[name] = {"dtype": _NAMES[arrays[name].dtype.name], "shape": list(arrays[name].shape),
                        "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(arrays[name].tobytes())


def load(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack_from("<Q", data)[0]
    dtypes = {name: dtype for dtype, name in _NAMES.items()}
    arrays = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in entry["data_offsets"])
        arrays[name] = np.frombuffer(data[begin:end], dtypes[entry["dtype"]]).reshape(entry["shape"])
    return arrays
