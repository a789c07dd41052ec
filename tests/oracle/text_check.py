"""Checks that FOLDER/N.txt is what NumPy prints of FOLDER/N.npy, for N = 0, 1, ...

Exit status: 0 right, 1 wrong, 77 numpy is missing or older than 2.4 (it chose exponents by another rule).
"""
import itertools
import os
import sys

try:
    import numpy as np
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)
if tuple(int(part) for part in np.__version__.split(".")[:2]) < (2, 4):
    print(f"not run: numpy {np.__version__}")
    sys.exit(77)

folder = sys.argv[1]
for n in itertools.count():
    if not os.path.exists(f"{folder}/{n}.npy"):
        break
    array = np.load(f"{folder}/{n}.npy")
    expected = np.array2string(array)
    with open(f"{folder}/{n}.txt") as file:
        found = file.read()
    if found != expected:
        print(f"array {n}, {array.dtype} {array.shape}: expected\n{expected}\nfound\n{found}")
        sys.exit(1)
sys.exit(0 if n > 0 else 1)
