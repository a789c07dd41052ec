#!/usr/bin/env python3
"""What the kernels of cuda/ take, read off their machine code for sm_90, held against budgets.

  tools/kernels.py OBJECTS... [--budgets FILE] [--list] [--figures FILE]
  tools/kernels.py --has-cuobjdump

OBJECTS are object files of nvcc, or folders that are searched for them. `cuobjdump` and `nvdisasm` are those of CUOBJDUMP,
PATH, the toolkit or Python's packages. Prints a line for each row of the budgets (tools/kernel_budgets.txt, which explains the columns) with
the largest figures of its kernels; --list prints a line for each kernel; --figures writes all figures as a table
with tabs. Exit status 1, with names, when a figure is over its budget, a kernel has no row, a row has no kernel, or nothing
could be read.

A trip. Kernels that move data do it in trips: a pass of a loop, or all of a thread's way through the kernel. The trip that counts is the one that moves most bytes of global memory:
of those that load words of 16 bytes, or loops of 8, else of the loops, else the whole kernel. It counts by the longest of the ways that move
them by words, or, where there are no words, by 2 bytes, and that calls no function, as divisions do for rare values. With
tensor cores it is the loop that uses them, by its shortest way: masks and dropout do not count. A GPU issues 128 instructions a clock on each multiprocessor, so instructions over bytes bound the share of its bandwidth.
"""
import argparse
import collections
import fnmatch
import glob
import multiprocessing
import os
import re
import shutil
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))

Instruction = collections.namedtuple("Instruction", "at guard code operands")
# Of a kernel: registers and stack bytes per thread, static shared bytes per block, 2-byte loads in its trip, other
# loops with such loads. Of its trip: instructions, bytes moved and loaded, slow and tensor-core instructions.
Figures = collections.namedtuple(
    "Figures", "registers stack shared narrow tails instructions moved loaded half eighth tensor")


def tool():
    found = os.environ.get("CUOBJDUMP") or shutil.which("cuobjdump")
    beside = ["/usr/local/cuda/bin/cuobjdump"]
    for folder in sys.path:  # Python packages: nvidia-cuda-cuobjdump with nvidia-cuda-nvdisasm, triton
        beside += glob.glob(f"{folder}/nvidia/*/bin/cuobjdump") + [f"{folder}/triton/backends/nvidia/bin/cuobjdump"]
    return found or next(filter(os.path.exists, beside), None)


def output(command):
    environment = dict(os.environ, PATH=os.path.dirname(os.path.abspath(command[0])) + os.pathsep + os.environ["PATH"])
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {ran.stderr.strip() or ran.stdout.strip()}")
    return ran.stdout


def short(mangled):
    """{mangled: name}: the body's type, in the words of the sources."""
    plain = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    names = {}
    for name, text in zip(mangled, plain.splitlines()):
        text = re.sub(r"\(anonymous namespace\)::", "", text)
        body = re.match(r"void thimble::cuda_kernels::kernel_detail::(run_items|run_teams)<(.*)>\(long", text)
        text = body.group(2) if body else re.sub(r"^void ", "", re.sub(r"\((?!.*\)::).*$", "", text))
        names[name] = re.sub(r"thimble::|kernels::|cuda_|_?cuda_detail(?=::)|_detail(?=::)", "", text).replace("> >", ">>").strip()
    return names


# ---- machine code

def functions(text):
    """{mangled: [Instruction]} of cuobjdump -sass."""
    found, code = {}, None
    line_of = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
    for line in text.splitlines():
        if "Function : " in line:
            code = found.setdefault(line.split("Function : ")[1].strip(), [])
            code.clear()
        elif code is not None and (got := line_of.match(line)):
            code.append(Instruction(int(got[1], 16), got[2], got[3], got[4]))
    return found


def resources(text):
    """{mangled: (registers, stack, shared)} of cuobjdump --dump-resource-usage."""
    found, name = {}, None
    for line in text.splitlines():
        if got := re.match(r"\s*Function (\S+):", line):
            name = got[1]
        elif got := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            found[name] = tuple(map(int, got.groups()))
    return found


def bytes_of(instruction, kinds):
    """Bytes of global memory that a thread moves with it."""
    parts = instruction.code.split(".")
    if parts[0] not in kinds:
        return 0
    for part in parts[1:]:
        if part in ("64", "128", "256"):
            return int(part) // 8
        if part in ("U16", "S16", "16"):
            return 2
        if part in ("U8", "S8", "8"):
            return 1
    return 4


LOADS, STORES = ("LDG", "LDGSTS"), ("STG", "RED", "ATOMG", "REDG")
# Instructions of which a clock does fewer than 128: 64 (comparisons, selections, integer additions; f64), 16
# (functions, most conversions).
HALF = ("IADD3", "LOP3", "SHF", "ISETP", "LEA", "SEL", "PRMT", "IMNMX", "VIADD", "IABS", "FSEL", "FSETP", "FMNMX",
        "PLOP3", "VIMNMX", "P2R", "R2P", "F2FP", "DADD", "DMUL", "DFMA", "DSETP")
EIGHTH = ("MUFU", "F2F", "F2I", "I2F", "POPC", "FLO", "BREV")


def is_tensor(instruction):
    return instruction.code.split(".")[0] in ("HMMA", "IMMA", "QMMA")


def blocks_of(code):
    """Basic blocks as lists of instructions, and the places that each goes on to."""
    target_of = {}
    for one in code:
        if one.code.split(".")[0] in ("BRA", "UBRA") and (found := re.findall(r"0x([0-9a-f]+)", one.operands)):
            target_of[one.at] = int(found[-1], 16)
    starts = {code[0].at} | set(target_of.values())
    for one, following in zip(code, code[1:]):
        if one.at in target_of or one.code.split(".")[0] in ("EXIT", "RET", "BRX", "JMX"):
            starts.add(following.at)
    blocks, goes_on = [], []
    for one in code:
        if one.at in starts:
            blocks.append([])
        blocks[-1].append(one)
    place = {block[0].at: i for i, block in enumerate(blocks)}
    for i, block in enumerate(blocks):
        last, kind = block[-1], block[-1].code.split(".")[0]
        is_sure = last.guard is None and not re.match(r"!?U?P\d", last.operands)
        after = [i + 1] if i + 1 < len(blocks) else []
        if last.at in target_of:
            to = place.get(target_of[last.at])
            after = ([] if to is None or to == i and is_sure else [to]) + ([] if is_sure else after)
        elif kind in ("EXIT", "RET", "BRX", "JMX") and is_sure:
            after = []
        goes_on.append(after)
    return blocks, goes_on


def loops_of(goes_on):
    """Natural loops as {head: blocks}, and the edges that close them."""
    count = len(goes_on)
    order, seen, stack = [], {0}, [(0, iter(goes_on[0]))]
    while stack:
        block, rest = stack[-1]
        for following in rest:
            if following not in seen:
                seen.add(following)
                stack.append((following, iter(goes_on[following])))
                break
        else:
            order.append(block)
            stack.pop()
    order.reverse()
    before = [[] for _ in range(count)]
    for block in order:
        for following in goes_on[block]:
            before[following].append(block)
    dominators = {block: set(order) for block in order}
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            new = set.intersection(*(dominators[b] for b in before[block])) | {block}
            if new != dominators[block]:
                dominators[block], changed = new, True
    place = {block: i for i, block in enumerate(order)}
    closing = {(block, to) for block in order for to in goes_on[block] if place[to] <= place[block]}
    loops = {}
    for block in order:
        for head in goes_on[block]:
            if head in dominators[block]:
                inside, work = loops.setdefault(head, {head}), [block]
                while work:
                    if (one := work.pop()) not in inside:
                        inside.add(one)
                        work += before[one]
    return loops, closing, order


def way_of(blocks, goes_on, closing, order, inside, counted, head, cost):
    """The instructions of the way from `head` through `inside` whose blocks cost most, each with whether it is `counted`: loops
    further inside are not."""
    best = {head: (cost(head), None)}
    for block in order:
        if block not in best:
            continue
        for following in goes_on[block]:
            if following in inside and (block, following) not in closing:
                new = tuple(a + b for a, b in zip(best[block][0], cost(following)))
                if following not in best or new > best[following][0]:
                    best[following] = (new, block)
    # The way ends where the loop closes or, for the whole kernel, at an exit.
    ends = [b for b in best if (b, head) in closing] or [b for b in best if not goes_on[b]]
    block, way = max(ends, key=lambda b: best[b][0]), []
    while block is not None:
        way = [(one, block in counted) for one in blocks[block]] + way
        block = best[block][1]
    return [one for one in way if one[0].code != "NOP"]


def moved(way, kinds=LOADS + STORES):
    return sum(bytes_of(one, kinds) for one, is_counted in way if is_counted)


def figures_of(code, resource):
    blocks, goes_on = blocks_of(code)
    loops, closing, order = loops_of(goes_on)
    regions = {None: set(order), **loops}
    def loads(counted, sizes):
        return sum(bytes_of(i, LOADS) in sizes for b in counted for i in blocks[b])

    def calls(block):
        return -sum(i.code.startswith("CALL") for i in blocks[block])

    trips, tails = [], 0
    for head, inside in regions.items():
        counted = inside - set().union(*(other for key, other in loops.items() if key != head and other <= inside))
        # Without 16-byte loads, 2-byte elements are loaded one by one, perhaps after a choice of dtypes up to 8 bytes.
        narrow = 0 if loads(counted, (16,)) else loads(counted, (2,))
        words = (2,) if narrow else (16,) if head is None else (8, 16)
        tails += narrow > 0

        def cost(block):
            sizes = [bytes_of(i, LOADS + STORES) for i in blocks[block]] if block in counted else []
            return sum(s for s in sizes if s in words), sum(sizes), calls(block), len(blocks[block])

        def tensor_cost(block):
            return sum(is_tensor(i) for i in blocks[block] if block in counted), calls(block), -len(blocks[block])

        computes = any(is_tensor(i) for b in counted for i in blocks[b])
        way = way_of(blocks, goes_on, closing, order, inside, counted, head or 0, tensor_cost if computes else cost)
        is_loop = head is not None and moved(way, LOADS) > 0
        by_words = not narrow and any(bytes_of(one, LOADS) in words for one, is_counted in way if is_counted)
        trips.append(((computes, by_words, by_words or is_loop, moved(way), -len(way)), narrow, way))
    _, narrow, trip = max(trips, key=lambda one: one[0])
    kinds = collections.Counter(one.code.split(".")[0] for one, _ in trip)
    return Figures(*resource, narrow, tails - (narrow > 0), len(trip), moved(trip), moved(trip, LOADS),
                   *(sum(kinds[k] for k in group) for group in (HALF, EIGHTH)), sum(is_tensor(one) for one, _ in trip))


def read_file(file):
    of_hopper = [tool(), "-arch", "sm_90", file]
    resource = resources(output(of_hopper + ["--dump-resource-usage"]))
    codes = functions(output(of_hopper + ["-sass"]))
    names = short(list(codes))
    return [(names[mangled], figures_of(code, resource[mangled]))
            for mangled, code in codes.items() if code]


def read(objects):
    """{name: Figures} of all kernels in object files."""
    files = []
    for path in objects:
        files += sorted(glob.glob(os.path.join(path, "**", "*.cu.o"), recursive=True)) if os.path.isdir(path) else [path]
    if not files:
        sys.exit(f"kernels.py: no *.cu.o in {' '.join(objects)}")
    if not tool():
        sys.exit("kernels.py: no cuobjdump: name one in CUOBJDUMP, nvdisasm beside it")
    with multiprocessing.Pool() as pool:
        return dict(pair for part in pool.map(read_file, files, chunksize=1) for pair in part)


# ---- budgets

def braces(pattern):
    """a{b,c}d as ad patterns: abd, acd."""
    if not (found := re.search(r"{([^{}]*)}", pattern)):
        return [pattern]
    return [one for part in found[1].split(",") for one in
            braces(pattern[:found.start()] + part + pattern[found.end():])]


class Row:
    """A row of the budgets: patterns of names and the largest figures that their kernels may have (None: any)."""
    columns = ("registers", "stack", "shared", "narrow", "tails", "per_byte")

    def __init__(self, line, where):
        fields = re.split(r"  +", line.strip(), maxsplit=len(self.columns) + 1)
        try:
            self.name, numbers = fields[0], fields[1:len(self.columns) + 1]
            self.most = {c: None if n == "-" else float(n) for c, n in zip(self.columns, numbers, strict=True)}
        except ValueError:
            sys.exit(f"kernels.py: {where}: '{line.strip()}' is not NAME {' '.join(self.columns)} [WHY]")
        self.why = fields[-1] if len(fields) > len(self.columns) + 1 else ""
        self.patterns, self.kernels = braces(self.name), {}

    def takes(self, name):
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)


def budgets(path):
    with open(path) as file:
        return [Row(line, f"{path}:{number}") for number, line in enumerate(file, 1)
                if line.strip() and not line.startswith("#")]


def figure(figures, column):
    return figures.instructions / max(1, figures.moved) if column == "per_byte" else getattr(figures, column)


def cell(value, most):
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    return text + ("" if most is None else f"/{most:g}") + ("!" if most is not None and value > most else "")


def check(figures, rows, is_listed):
    """Prints the figures beside their budgets; what is wrong with them, as lines."""
    wrong, width = [], max(len(row.name) for row in rows)
    for name in sorted(figures):
        row = next((row for row in rows if row.takes(name)), None)
        if row is None:
            wrong.append(f"{name}: no row of the budgets is for it")
        else:
            row.kernels[name] = figures[name]
    print(f"{'':{width}}  kernels " + " ".join(f"{c:>12}" for c in Row.columns))
    for row in rows:
        if not row.kernels:
            wrong.append(f"{row.name}: no kernel has this name")
            continue
        largest = {c: max(figure(one, c) for one in row.kernels.values()) for c in Row.columns}
        lines = [(f"{row.name:{width}}  {len(row.kernels):7}", largest)]
        if is_listed:
            lines = [(f"  {name:{width + 7}}", {c: figure(one, c) for c in Row.columns})
                     for name, one in row.kernels.items()]
        for title, values in lines:
            print(title + " " + " ".join(f"{cell(values[c], row.most[c]):>12}" for c in Row.columns))
        for name, one in row.kernels.items():
            wrong += [f"{name}: {c} {figure(one, c):.4g}, {row.most[c]:g} allowed ({row.name})"
                      for c in Row.columns if row.most[c] is not None and round(figure(one, c), 1) > row.most[c]]
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objects", nargs="*")
    parser.add_argument("--has-cuobjdump", action="store_true")
    parser.add_argument("--budgets", default=os.path.join(here, "kernel_budgets.txt"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--figures")
    options = parser.parse_args()
    if options.has_cuobjdump:
        sys.exit(tool() is None)
    try:
        rows, figures = budgets(options.budgets), read(options.objects)
    except (RuntimeError, OSError) as error:
        sys.exit(f"kernels.py: {error}")
    if options.figures:
        with open(options.figures, "w") as file:
            for name in sorted(figures):
                file.write("\t".join(map(str, (name, *figures[name]))) + "\n")
    wrong = check(figures, rows, options.list)
    print(f"{len(figures)} kernels, {len(rows)} rows; " + (f"{len(wrong)} WRONG:" if wrong else "all within their budgets"))
    print("\n".join(f"kernels.py: {line}" for line in wrong), file=sys.stderr, end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
