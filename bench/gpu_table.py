#!/usr/bin/env python3
"""The table of docs/gpu-results.md, of what bench/gpu_first.sh wrote:

  gpu_table.py RESULTS [EXPECTED]

RESULTS is its results.txt, of one call or of several; of a stage that ran again the last counts. EXPECTED (gpu_expected.tsv
beside this script) has what bench/gpu_expected.py estimates for a H200. Every stage has a row, one that failed, was ended at its
limit or was left out, too: what it printed before counts. Goals say whether a figure is where it is wanted.
"""
import json
import os
import re
import sys

here = os.path.dirname(os.path.abspath(__file__))
STAGE = re.compile(r"==== stage (\S+): (begins|passed|left out|FAILED|TIMED OUT|no time left)(?:, (\d+) s)?")
LINE = re.compile(r"(\w+) +(f32|f16|bf16|f8e4m3|i8|u8) +([\d.]+) ms +([\d.]+) (GB/s|Gop/s|steps/s)$")
MEMORY = re.compile(r"([\w-]+) +(\d+) MiB +([\d.]+) ms +([\d.]+) GB/s(.*)$")


def stages_of(text):
    """[(name, state, seconds, lines)] in the order in which they first ran, and the lines outside of stages."""
    stages, outside, current = {}, [], None
    for line in text.splitlines():
        if found := STAGE.match(line):
            name, state, seconds = found[1], found[2], found[3]
            if state == "begins":
                current = stages[name] = {"state": "CUT OFF", "seconds": None, "lines": []}
            else:
                stages.setdefault(name, {"lines": []}).update(state=state, seconds=seconds)
                current = None
        else:
            (outside if current is None else current["lines"]).append(line)
    return stages, outside


def operators(lines):
    return {(m[1], m[2]): (float(m[3]), float(m[4]), m[5]) for line in lines if (m := LINE.match(line))}


def steps(lines):
    """{name: JSON} of the lines `step NAME`."""
    found, name, text = {}, None, None
    for line in lines:
        if line.startswith("step "):
            name, text = line.split()[1], None
        elif name and line == "{":
            text = ["{"]
        elif text is not None:
            text.append(line)
            if line == "}":
                try:
                    found[name] = json.loads("\n".join(text))
                except ValueError:
                    pass
                name = text = None
    return found


class Table:
    def __init__(self):
        self.rows = []

    def add(self, what, figure, goal="", is_met=None):
        mark = "" if is_met is None else "met" if is_met else "**missed**"
        self.rows.append((what, figure, goal, mark))

    def least(self, what, value, bound, figure):
        self.add(what, figure, f"at least {bound:g}", value >= bound)

    def most(self, what, value, bound, figure):
        self.add(what, figure, f"at most {bound:g}", value <= bound)

    def show(self, title, heads):
        if not self.rows:
            return
        width = len(heads)
        print(f"\n## {title}\n\n| {' | '.join(heads)} |\n|{'---|' * width}")
        for row in self.rows:
            print(f"| {' | '.join(cell.replace('|', '/') for cell in row[:width])} |")


def gib(count):
    return f"{count / 2**30:.2f} GiB"


def of_stages(stages):
    table = Table()
    for name, stage in stages.items():
        lines, notes = stage["lines"], []
        failed = [line for line in lines if line.startswith("FAILED with")]
        whys = [line for line in lines if re.match(r"left out: |no PyTorch", line)]
        sums = [line for line in lines if re.match(r"(test cases|All tests passed|=+ ERROR SUMMARY|=+ RACECHECK SUMMARY)", line)]
        counts = [line for line in lines if re.search(r"predicted == measured in \d+ of \d+", line)]
        errors = [line for line in lines if re.match(r"thimble\w*: |gpu_\w+: |gpu_\w+\.py: |.*error while loading", line)]
        for part in (whys[:2], sums[:3], counts[:3], failed[:2], errors[:2]):
            notes += [line[:160] for line in part]
        state = stage["state"]
        seconds = stage.get("seconds")
        table.add(name, state if state in ("passed", "left out") else f"**{state}**", f"{seconds} s" if seconds else "", None)
        table.rows[-1] = (*table.rows[-1][:3], "; ".join(notes))
    table.show("Stages", ("stage", "ended", "after", "said"))


def of_operators(ours, theirs, memory, expected):
    copy = next((float(m[4]) for line in memory if (m := MEMORY.match(line)) and m[1] == "copy"), None)
    table = Table()
    for (name, dtype), (ms, rate, unit) in ours.items():
        if unit == "steps/s":
            continue
        reached = f"{rate / 1000:.1f} TFLOP/s" if unit == "Gop/s" else f"{rate:.0f} GB/s"
        if copy and unit == "GB/s":
            reached += f", {rate / copy:.2f} of a copy"
        peer, guess = theirs.get((name, dtype)), expected.get((name, dtype))
        row = [f"{name} {dtype}", f"{ms:.4f} ms", reached,
               f"{peer[0]:.4f} ms, {ms / peer[0]:.2f} of it" if peer else "",
               f"{guess:.4f} ms, {ms / guess:.2f} of it" if guess else "", ""]
        wanted = []
        if copy and name in ("add", "gelu", "batch_norm_relu", "dropout"):
            wanted.append((rate / copy >= 0.85, "0.85 of a copy"))
        if peer and name.startswith("matmul"):
            wanted.append((ms / peer[0] <= 1.05, "1.05 of PyTorch"))
        dense = ours.get((re.sub(r"^fp8(_current|_block)?", "linear", name), "bf16"))
        if name.startswith("fp8") and dense and name.endswith(("4096", "8192")):
            wanted.append((rate >= dense[1], "bf16's rate"))
        row[-1] = "; ".join(f"{goal}: {'met' if met else '**missed**'}" for met, goal in wanted)
        table.rows.append(tuple(row))
    table.show("Operators", ("operator", "ours", "reached", "PyTorch, ours of it", "expected, ours of it", "goal"))
    table = Table()
    for line in memory:
        if found := MEMORY.match(line):
            table.add(found[1], f"{found[3]} ms", f"{found[4]} GB/s{found[5]}", None)
    table.show("Memory", ("what", "time", "rate"))


def of_steps(found, expected):
    table = Table()
    for name, one in found.items():
        if "measured_peak_bytes" in one:
            same = one["predicted_peak_bytes"] == one["measured_peak_bytes"]
            table.add(f"{name}: bytes", f"predicted {one['predicted_peak_bytes']}, measured {one['measured_peak_bytes']} "
                      f"({gib(one['measured_peak_bytes'])})", "equal", same)
        if one.get("waits_per_step") is not None:
            table.add(f"{name}: waits of the host in a step", str(one["waits_per_step"]), "0", one["waits_per_step"] == 0)
        for library in ("cublaslt", "cudnn"):
            if one.get(f"{library}_refusals"):
                table.add(f"{name}: {library} refused", f"{one[f'{library}_refusals']} of {one[f'{library}_calls']}; first "
                          f"{one.get(f'{library}_first_refused')}", "0", False)
        if "unbooked_bytes" in one:
            table.add(f"{name}: behind the books", gib(one["unbooked_bytes"]))
        if "best_ms" in one:
            peak = f", peak {gib(one['peak_bytes'])}, reserved {gib(one['reserved_bytes'])}" if "reserved_bytes" in one else ""
            table.add(f"{name}: a step", f"{one['best_ms']:.2f} ms, {one['items_per_s']:.0f} items/s{peak}")
            if (name, "step") in expected:
                table.rows[-1] = (*table.rows[-1][:2], f"{expected[name, 'step']:.1f} ms expected", "")
        if "loss_first" in one:
            table.add(f"{name}: loss", f"{one['loss_first']:.3f} -> {one['loss_last']:.3f}", "falls",
                      one["loss_last"] < one["loss_first"])
    # Ours against PyTorch's: least share of its items/s, most of its bytes; None sets no goal.
    for name, peer, speed, size in (("gpt2", "gpt2-torch", 1, 0.5), ("gpt2-pure", "gpt2-pure-torch", None, None),
                                    ("gpt2", "gpt2-compiled-torch", None, None), ("resnet50", "resnet50-torch", 0.95, 0.6),
                                    ("resnet50", "resnet50-compiled-torch", None, None)):
        if name not in found or peer not in found:
            continue
        mine, other = found[name], found[peer]
        ratio = mine["items_per_s"] / other["items_per_s"]
        (table.least if speed else lambda what, value, bound, figure: table.add(what, figure))(
            f"{name} beside {peer}: items/s", ratio, speed, f"{ratio:.2f} of PyTorch's")
        for key in ("reserved_bytes", "peak_bytes"):
            if size and key in other:
                share = mine["measured_peak_bytes"] / other[key]
                table.most(f"{name} beside {peer}: bytes", share, size, f"{share:.2f} of its {key}")
    for budget, bound in (("10.01GiB", 1.032), ("4.99GiB", 1.119)):
        if f"fit-{budget}" in found and "fit-all" in found:
            ratio = found[f"fit-{budget}"]["best_ms"] / found["fit-all"]["best_ms"]
            table.most(f"resnet50 batch 184 within {budget}", ratio, bound, f"{ratio:.3f} of the time of keeping everything")
    table.show("Steps", ("what", "figure", "goal", ""))


def of_profile(lines):
    """The kernels that took most time, of ncu's CSV."""
    import csv
    kernels, heads = {}, None
    for row in csv.reader(line for line in lines if line.startswith('"')):
        if "Kernel Name" in row:
            heads = row
        elif heads and len(row) == len(heads):
            one = dict(zip(heads, row))
            kernels.setdefault((one["ID"], one["Kernel Name"]), {})[one["Metric Name"]] = one["Metric Value"].replace(",", "")
    sums = {}
    for (_, name), metrics in kernels.items():
        try:
            values = [float(metrics[key]) for key in ("gpu__time_duration.sum",
                      "dram__throughput.avg.pct_of_peak_sustained_elapsed",
                      "sm__inst_issued.avg.pct_of_peak_sustained_active", "launch__registers_per_thread")]
        except (KeyError, ValueError):
            continue
        short = re.sub(r"thimble::|cuda_kernels::|kernels::|kernel_detail::|_cuda_detail|^void ", "", name)[:70]
        sums.setdefault(short, []).append(values)
    table = Table()
    for name, all_values in sorted(sums.items(), key=lambda one: -sum(v[0] for v in one[1]))[:25]:
        time = sum(v[0] for v in all_values)
        memory, issue = (sum(v[0] * v[i] for v in all_values) / max(time, 1e-30) for i in (1, 2))
        table.rows.append((name, str(len(all_values)), f"{time / 1e6:.3f}", f"{memory:.0f} %", f"{issue:.0f} %", f"{all_values[0][3]:.0f}"))
    table.show("Slowest kernels", ("kernel", "launches", "ms", "memory", "issue slots", "registers"))


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("gpu_table.py: RESULTS [EXPECTED]")
    with open(sys.argv[1], errors="replace") as file:
        stages, outside = stages_of(file.read())
    expected, path = {}, sys.argv[2] if len(sys.argv) > 2 else os.path.join(here, "gpu_expected.tsv")
    if os.path.exists(path):
        with open(path) as file:
            expected = {(f[0], f[1]): float(f[2]) for line in file if len(f := line.split()) == 3}
    lines = lambda name: stages.get(name, {"lines": []})["lines"]
    print("# What a GPU said\n")
    about = [line for line in outside + lines("devices") if re.match(r"built: |libraries: |NVIDIA |cuda |cpu |without a GPU", line)]
    print("\n".join(f"- {line}" for line in dict.fromkeys(about)))
    of_stages(stages)
    of_operators(operators(lines("speed")), operators(lines("torch")), lines("memory"), expected)
    found = {}
    for name in ("gpt2", "resnet50", "fit", "train"):
        found |= steps(lines(name))
    of_steps(found, expected)
    of_profile(lines("profile"))


if __name__ == "__main__":
    main()
