"""Checks the arrays FOLDER/TYPE_SHAPE.npy with NumPy and saves the same arrays as FOLDER/numpy_TYPE_SHAPE.npy.

Exit status: 0 right, 1 wrong, 77 numpy is missing.
"""
import sys

try:
    import numpy as np
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)

folder = sys.argv[1]
for dtype in ["f8", "f4", "i8", "i4", "i1", "u1", "b1"]:
    for number, shape in enumerate([(), (5,), (2, 0, 3), (2, 3, 4)]):
        values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        expected = (values % 2 == 1) if dtype == "b1" else values.astype("<" + dtype)
        name = f"{dtype}_{number}.npy"
        array = np.load(f"{folder}/{name}")
        assert array.dtype == expected.dtype and array.shape == expected.shape, name
        assert np.array_equal(array, expected), name
        np.save(f"{folder}/numpy_{name}", expected)
np.save(f"{folder}/numpy_fortran.npy", np.asfortranarray(np.zeros((2, 3), np.float32)))
np.save(f"{folder}/numpy_big.npy", np.zeros(3, ">f4"))
np.save(f"{folder}/numpy_f2.npy", np.zeros(3, np.float16))
with open(f"{folder}/numpy_v3.npy", "wb") as file:
    np.lib.format.write_array(file, np.zeros(3, np.float32), version=(3, 0))
