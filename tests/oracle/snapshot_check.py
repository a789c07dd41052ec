"""Reads a memory snapshot with Python's own pickle and checks what a viewer of it relies on.

    snapshot_check.py FILE PEAK_BYTES

The running sum of allocations and frees has the peak PEAK_BYTES; every block lies inside the segment; no two that live
at the same time overlap; what is left at the end is what the segment's blocks say, and those tile the segment.
"""

import bisect
import pickle
import sys


def main(path, peak_bytes):
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    (segment,) = snapshot["segments"]
    (trace,) = snapshot["device_traces"]
    low, high = segment["address"], segment["address"] + segment["total_size"]
    assert trace[0]["action"] == "segment_alloc" and trace[0]["addr"] == low, trace[0]
    starts, live, total, peak, requested = [], {}, 0, 0, None
    for event in trace[1:]:
        address, size = event["addr"], event["size"]
        (frame,) = event["frames"]
        assert set(frame) == {"filename", "line", "name"}, frame
        if event["action"] == "alloc":
            assert low <= address and address + size <= high and size > 0, event
            at = bisect.bisect(starts, address)
            assert at == 0 or starts[at - 1] + live[starts[at - 1]] <= address, event
            assert at == len(starts) or address + size <= starts[at], event
            starts.insert(at, address)
            live[address] = size
            total += size
            peak = max(peak, total)
        elif event["action"] == "free_requested":
            requested = address
        else:
            assert event["action"] == "free_completed" and requested == address, event
            assert live.pop(address) == size, event
            starts.remove(address)
            total -= size
    assert peak == peak_bytes, (peak, peak_bytes)
    at, left = low, {}
    for block in segment["blocks"]:
        assert block["address"] == at, block
        at += block["size"]
        if block["state"] == "active_allocated":
            left[block["address"]] = block["requested_size"]
    assert at == high and left == live, (at, high)


main(sys.argv[1], int(sys.argv[2]))
