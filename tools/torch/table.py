import json, subprocess, sys, time
sys.path.insert(0, __file__.rsplit("/", 1)[0])
import torch
from record import record
from run import Planned
from tracing import measure_peak

program = sys.argv[1]

def plan(graph, budget=0):
    json.dump(graph, open("/tmp/graphdev/step.json", "w"))
    out = subprocess.run([program, "/tmp/graphdev/step.json", str(int(budget)), "json"], capture_output=True, text=True)
    if out.returncode: raise SystemExit(out.stderr)
    return json.loads(out.stdout)
