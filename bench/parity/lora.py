"""Holds adapters over GPT-2 and Llama with random weights against PEFT, in f32 and f64: files, logits, gradients,
training.

usage: lora.py PROGRAM [flags]; --help lists them. Exit status: 0 passed, 1 failed, 77 no torch, transformers or peft.

For some small configurations and choices of layers:
  files      a folder that PEFT writes is what our side loads; the folder that our side writes, PEFT loads: the same
             adapters, bit for bit, and the same logits.
  logits     of the first batch: |ours - theirs| / |theirs| <= 1e-5 in f32, 1e-12 in f64
  gradients  of the first step, per tensor: <= 1e-5 in f32, 1e-10 in f64; no other parameter has one
  losses     of 10 steps of AdamW over the adapters: <= 1e-4 in f32, 1e-10 in f64
"""

import argparse
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import peft
    import torch
    import transformers
    from torch.nn import functional as F
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)

import llama
import tensor_file

STEPS, BATCH, RATE = llama.STEPS, llama.BATCH, llama.RATE
SIZES = dict(vocab_size=67, n_positions=64, n_embd=48, n_layer=3, n_head=6)


def gpt2(flags):
    config = transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, activation_function="gelu_new", **SIZES)
    torch.manual_seed(flags.seed)
    model = transformers.GPT2LMHeadModel(config)
    for p in model.parameters():
        p.data = 0.1 * torch.randn(p.shape) + (1 if p.dim() == 1 and p.data.mean() == 1 else 0)
    return model, ["char-gpt", "--layers=3", "--heads=6", "--width=48", f"--vocabulary={SIZES['vocab_size']}"]


def of_llama(flags):
    return llama.random_model(llama.CASES["llama-3"](), flags.seed), ["llama"]


# name: the model, r, alpha, target modules
CASES = {
    "gpt2 attn": (gpt2, 4, 8, ["c_attn"]),
    "gpt2 all": (gpt2, 3, 6, ["c_attn", "c_proj", "c_fc"]),
    "llama q, v": (of_llama, 4, 16, ["q_proj", "v_proj"]),
    "llama all": (of_llama, 8, 8, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
}


def adapted(flags, name, dtype):
    make, rank, alpha, targets = CASES[name]
    model, arguments = make(flags)
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM",
                             fan_in_fan_out=make is gpt2)
    model = peft.get_peft_model(model, config)
    torch.manual_seed(flags.seed + 1)
    for key, p in model.named_parameters():
        if "lora_B" in key:
            p.data = 0.1 * torch.randn(p.shape)  # else nothing but B has a gradient
    model = model.to(dtype).train()
    if dtype == torch.float64 and make is of_llama:
        llama.make_exact(model.get_base_model(), llama.CASES["llama-3"]())
    return model, arguments


def name_here(key):
    return key.replace("base_model.model.", "", 1).replace(".default.", ".").replace("transformer.", "")


def train_torch(model, batches):
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, betas=(0.9, 0.95), eps=1e-8,
                             weight_decay=0.1)
    out = {"loss": []}
    for step, (ids, targets) in enumerate(batches):
        logits = model(input_ids=torch.from_numpy(ids), use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        adam.zero_grad()
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach().numpy()
            out.update({"gradient." + name_here(key): p.grad.numpy().copy()
                        for key, p in model.named_parameters() if p.requires_grad})
        adam.step()
        out["loss"].append(loss.item())
    return out


def write_weights(model, arguments, folder):
    """The base as public files have it."""
    base = model.unload() if hasattr(model, "unload") else model
    base.save_pretrained(folder)
    if arguments[0] == "llama":
        return folder
    path = os.path.join(folder, "plain")
    tensor_file.save(path, {key.replace("transformer.", "", 1): t.detach().numpy() for key, t in
                            base.state_dict().items() if key != "lm_head.weight"})
    return path


def run_case(flags, table, name, folder):
    random = np.random.default_rng(flags.seed)
    ids = random.integers(0, SIZES["vocab_size"], (STEPS, BATCH, flags.seq + 1))
    batches = [(np.ascontiguousarray(step[:, :-1]), np.ascontiguousarray(step[:, 1:])) for step in ids]
    arrays = {}
    for step, (inputs, targets) in enumerate(batches):
        arrays[f"{step}.input"], arrays[f"{step}.target"] = inputs, targets
    paths = os.path.join(folder, "batches"), os.path.join(folder, "out")
    theirs, ours = os.path.join(folder, "theirs"), os.path.join(folder, "ours")
    tensor_file.save(paths[0], arrays)
    model, arguments = adapted(flags, name, torch.float32)
    model.save_pretrained(theirs)
    weights = write_weights(adapted(flags, name, torch.float32)[0], arguments, os.path.join(folder, "base"))
    for dtype, (logits, gradient, loss) in llama.BOUNDS.items():
        label = "f32" if dtype == torch.float32 else "f64"
        command = [flags.program, arguments[0], weights, *paths, f"--rate={RATE}", f"--adapters={theirs}",
                   f"--save-adapters={ours}", *arguments[1:]]
        command.append(f"--seq={SIZES['n_positions'] if arguments[0] != 'llama' else flags.seq}")
        if dtype == torch.float64:
            command.append("--f64")
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(flags.threads)})
        got = tensor_file.load(paths[1])
        want = train_torch(adapted(flags, name, dtype)[0], batches)
        table.row(name, label, "logits", llama.relative(got["logits"], want["logits"]), logits)
        keys = sorted(key for key in want if key.startswith("gradient."))
        if keys != sorted(key for key in got if key.startswith("gradient.")):
            sys.exit("failed: gradients of other parameters")
        each = {key: llama.relative(got[key], want[key]) for key in keys}
        worst = max(each, key=each.get)
        table.row(name, label, "gradient, worst: " + worst.split(".", 1)[1].replace("model.layers.", ""), each[worst],
                  gradient)
        table.row(name, label, f"losses, {STEPS} steps",
                  float(np.max(np.abs(got["loss"] / np.array(want["loss"]) - 1))), loss)
        if dtype == torch.float32:
            again = peft.PeftModel.from_pretrained(adapted(flags, name, dtype)[0].unload(), ours)
            state, other = peft.get_peft_model_state_dict(model), peft.get_peft_model_state_dict(again)
            problems = len(set(state) ^ set(other)) + sum(not torch.equal(t, other[key]) for key, t in state.items())
            inputs = torch.from_numpy(batches[0][0])
            with torch.no_grad():
                problems += not torch.equal(model.eval()(input_ids=inputs).logits, again.eval()(input_ids=inputs).logits)
            table.row(name, "files", "adapters and logits that differ", problems, 0)


def main():
    parser = argparse.ArgumentParser(description="Compares adapters with PEFT.")
    parser.add_argument("program", help="thimble_parity")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seq", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, PEFT {peft.__version__}, CPU, "
          f"{flags.threads} threads")
    table = llama.Table()
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            run_case(flags, table, name, folder)
    print("passed" if table.passed else "FAILED")
    sys.exit(0 if table.passed else 1)


if __name__ == "__main__":
    main()
