"""Prints what TensorBoard itself reads from a folder of event files, one scalar per line: tag, step, value (hex float).

usage: read_tensorboard.py FOLDER
Exit code 3 when the package tensorboard is not installed.
"""

import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
print("file_version", events.file_version)
tags = events.Tags()
for tag in sorted(tags["scalars"]):
    for point in events.Scalars(tag):
        print("scalar", tag, point.step, float(point.value).hex())
# TensorBoard's data migration turns scalars into tensors.
for tag in sorted(tags["tensors"]):
    from tensorboard.util import tensor_util

    for point in events.Tensors(tag):
        print("scalar", tag, point.step, float(tensor_util.make_ndarray(point.tensor_proto)).hex())
