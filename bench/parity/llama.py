"""Holds Llama, Mistral and Qwen 2 with random weights against transformers, in f32 and f64: files, logits, gradients, training.

usage: llama.py PROGRAM [flags]; --help lists them. Exit status: 0 passed, 1 failed, 77 no torch or no transformers.

For each of some small configurations (with and without grouped queries, a tied head, biases, Llama 3.1's scaling, a window):
  files      a folder that transformers writes, in shards, is what our side loads; the folder that our side writes, in
             shards, transformers loads: the same weights and the same logits, bit for bit, and no key is missing.
  logits     of the first batch: |ours - theirs| / |theirs| <= 1e-5 in f32, 1e-12 in f64
  gradients  of the first step, per tensor: <= 1e-5 in f32, 1e-10 in f64; a key's bias beside that of a query
  losses     of 10 steps of AdamW: <= 1e-4 in f32, 1e-10 in f64
Both of our builds; of a window the fused one alone.

transformers computes norms and the angles of rotary positions in f32 whatever the model's dtype. In f32 nothing is
changed; in f64 these two are computed in f64, by formulas of this file.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    import transformers
    from torch.nn import functional as F
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)

import tensor_file

STEPS, BATCH, RATE = 10, 3, 1e-3
BOUNDS = {torch.float32: (1e-5, 1e-5, 1e-4), torch.float64: (1e-12, 1e-10, 1e-10)}
SIZES = dict(vocab_size=67, hidden_size=48, num_hidden_layers=3, num_attention_heads=6, max_position_embeddings=64)
SCALING = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=32)


def config_of(kind, key_heads, hidden, tied, theta, eps, scaling=None, **more):
    Config = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig,
              "qwen2": transformers.Qwen2Config}[kind]
    rope = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    return Config(num_key_value_heads=key_heads, intermediate_size=hidden, tie_word_embeddings=tied, rms_norm_eps=eps,
                  rope_parameters=rope, **SIZES, **more)


CASES = {
    "llama-2": lambda: config_of("llama", 6, 128, False, 10000.0, 1e-5),
    "llama-3": lambda: config_of("llama", 2, 100, False, 500000.0, 1e-5),
    "llama-3.2": lambda: config_of("llama", 3, 128, True, 100.0, 1e-5, SCALING),
    "qwen2 tied": lambda: config_of("qwen2", 1, 80, True, 1000000.0, 1e-6),
    "qwen2": lambda: config_of("qwen2", 2, 80, False, 1000000.0, 1e-6),
    "mistral": lambda: config_of("mistral", 2, 100, False, 10000.0, 1e-5, sliding_window=7),
    "qwen2 window": lambda: config_of("qwen2", 2, 80, False, 1000000.0, 1e-6, use_sliding_window=True,
                                      sliding_window=11, max_window_layers=0),
}


def random_model(config, seed):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    for name, p in model.named_parameters():
        is_gain = name.endswith("norm.weight")
        p.data = 1 + 0.1 * torch.randn(p.shape) if is_gain else 0.1 * torch.randn(p.shape)
    return model.train()


def make_exact(model, config):
    """Norms and rotary positions in f64."""
    rope = config.rope_parameters
    width = config.hidden_size // config.num_attention_heads
    frequency = rope["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if rope["rope_type"] == "llama3":
        wavelength = 2 * math.pi / frequency
        length = rope["original_max_position_embeddings"]
        low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
        smooth = (length / wavelength - low) / (high - low)
        between = (1 - smooth) * frequency / factor + smooth * frequency
        frequency = torch.where(wavelength > length / low, frequency / factor,
                                torch.where(wavelength < length / high, frequency, between))

    def positions(x, position_ids):
        angle = position_ids[..., None].double() * frequency
        angle = torch.cat([angle, angle], -1)
        return angle.cos(), angle.sin()

    model.model.rotary_emb.forward = positions
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = lambda x, m=module: m.weight * x * torch.rsqrt(
                x.square().mean(-1, keepdim=True) + m.variance_epsilon)


def train_torch(model, config, batches, dtype):
    model = model.to(dtype)
    if dtype == torch.float64:
        make_exact(model, config)
    adam = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    out = {"loss": []}
    for step, (ids, targets) in enumerate(batches):
        logits = model(input_ids=torch.from_numpy(ids), use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        adam.zero_grad()
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach().numpy()
            out.update({"gradient." + name: p.grad.numpy().copy() for name, p in model.named_parameters()})
        adam.step()
        out["loss"].append(loss.item())
    return out


def train_ours(flags, folder, weights, batches, dtype, extra):
    arrays = {}
    for step, (ids, targets) in enumerate(batches):
        arrays[f"{step}.input"], arrays[f"{step}.target"] = ids, targets
    paths = os.path.join(folder, "batches"), os.path.join(folder, "out")
    tensor_file.save(paths[0], arrays)
    command = [flags.program, "llama", weights, *paths, f"--rate={RATE}", f"--seq={batches[0][0].shape[1]}", *extra]
    if dtype == torch.float64:
        command.append("--f64")
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(flags.threads)})
    return tensor_file.load(paths[1])


def relative(ours, theirs, beside=None):
    theirs = np.asarray(theirs, np.float64)
    scale = np.linalg.norm(theirs if beside is None else np.asarray(beside, np.float64))
    return float(np.linalg.norm(np.asarray(ours, np.float64) - theirs) / scale)


class Table:
    def __init__(self):
        self.passed = True
        print(f"{'model':14}{'ours':15}{'quantity':52}{'measured':>11}{'allowed':>11}")

    def row(self, model, ours, what, value, allowed):
        is_fine = bool(value <= allowed)  # NaN is not
        self.passed &= is_fine
        print(f"{model:14}{ours:15}{what:52}{value:11.2e}{allowed:11.2e}  {'ok' if is_fine else 'FAILED'}", flush=True)


def check_files(flags, table, name, config, folder, batches):
    """Both ways, each in shards."""
    model = random_model(config, flags.seed)
    theirs, ours = os.path.join(folder, "theirs"), os.path.join(folder, "ours")
    model.save_pretrained(theirs, max_shard_size="30KB")
    if not os.path.exists(os.path.join(theirs, "model.safetensors.index.json")):
        sys.exit("failed: transformers wrote one file where shards were asked for")
    train_ours(flags, folder, theirs, batches[:1], torch.float32, [f"--save={ours}", "--shard=30000"])
    again, info = transformers.AutoModelForCausalLM.from_pretrained(ours, output_loading_info=True, dtype="float32",
                                                                   attn_implementation="sdpa")
    problems = sum(len(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state, other = model.state_dict(), again.state_dict()
    problems += sum(key not in other or not torch.equal(t, other[key]) for key, t in state.items())
    for key in ("model_type", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "num_key_value_heads",
                "intermediate_size", "max_position_embeddings", "sliding_window"):
        problems += getattr(config, key, None) != getattr(again.config, key, None)
    ids = torch.from_numpy(batches[0][0])
    with torch.no_grad():
        problems += not torch.equal(model(input_ids=ids).logits, again(input_ids=ids).logits)
    table.row(name, "files", "tensors, keys and logits that differ", problems, 0)
    return theirs


def run_case(flags, table, name, folder):
    config = CASES[name]()
    random = np.random.default_rng(flags.seed)
    ids = random.integers(0, SIZES["vocab_size"], (STEPS, BATCH, flags.seq + 1))
    batches = [(np.ascontiguousarray(step[:, :-1]), np.ascontiguousarray(step[:, 1:])) for step in ids]
    weights = check_files(flags, table, name, config, folder, batches)
    for dtype, (logits, gradient, loss) in BOUNDS.items():
        theirs = train_torch(random_model(config, flags.seed), config, batches, dtype)
        builds = [("fused", []), ("textbook", ["--textbook"])]
        for build, extra in builds[:1] if getattr(config, "sliding_window", None) else builds:
            label = f"{'f32' if dtype == torch.float32 else 'f64'} {build}"
            ours = train_ours(flags, folder, weights, batches, dtype, extra)
            table.row(name, label, "logits", relative(ours["logits"], theirs["logits"]), logits)
            keys = [key for key in theirs if key.startswith("gradient.")]
            if sorted(keys) != sorted(key for key in ours if key.startswith("gradient.")):
                sys.exit("failed: gradients of other parameters")
            # A key's bias moves all scores of a query nearly alike: its gradient is what rotation leaves.
            each = {key: relative(ours[key], theirs[key], theirs[key.replace("k_proj.bias", "q_proj.bias")])
                    for key in keys}
            worst = max(each, key=each.get)
            table.row(name, label, "gradient, worst: " + worst.split(".", 1)[1].replace("model.layers.", ""),
                      each[worst], gradient)
            table.row(name, label, f"losses, {STEPS} steps",
                      float(np.max(np.abs(ours["loss"] / np.array(theirs["loss"]) - 1))), loss)


def main():
    parser = argparse.ArgumentParser(description="Compares the Llama family with transformers.")
    parser.add_argument("program", help="thimble_parity")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seq", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, NumPy {np.__version__}, CPU, "
          f"{flags.threads} threads, seed {flags.seed}, {flags.seq} tokens")
    table = Table()
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            run_case(flags, table, name, folder)
    print("passed" if table.passed else "failed")
    return 0 if table.passed else 1


if __name__ == "__main__":
    sys.exit(main())
