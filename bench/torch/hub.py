"""Compares Llama, Mistral and Qwen 2 with random weights with transformers, and adapters over GPT-2 and Llama with PEFT, in
f32 and f64: files, logits, gradients, training.

usage: hub.py PROGRAM [--adapters=yes] [flags]; --help lists them. Exit status: 0 passed, 1 failed, 77 no torch,
transformers or peft.

For each of some small configurations (with and without grouped queries, a tied head, biases, Llama 3.1's scaling, a
window), or with --adapters for some choices of layers:
  files      a folder that the other library writes, weights in shards, is what our side loads; the folder that our side
             writes, weights in shards, the other loads: the same weights and the same logits, bit for bit, and no key is
             missing.
  logits     of the first batch: |ours - theirs| / |theirs| <= 1e-5 in f32, 1e-12 in f64
  gradients  of the first step, per tensor: <= 1e-5 in f32, 1e-10 in f64; a key's bias beside that of a query; of adapters
             no other parameter has one
  losses     of 10 steps of AdamW: <= 1e-4 in f32, 1e-10 in f64
Both of our builds of whole models; of a window and of adapters only the fused one.

transformers computes norms and the angles of rotary positions in f32 whatever the model's dtype. In f32 nothing is
changed; in f64 these two are computed in f64, by formulas of this file.
"""
import math
import os
import sys
import tempfile

from compare import Table, arrays, loss_difference, np, parse_flags, pick, relative, torch, train_ours, train_torch, worst_of

try:
    import peft
    import transformers
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)

STEPS, BATCH, RATE = 10, 3, 1e-3
BOUNDS = {torch.float32: (1e-5, 1e-5, 1e-4), torch.float64: (1e-12, 1e-10, 1e-10)}
SIZES = dict(vocab_size=67, hidden_size=48, num_hidden_layers=3, num_attention_heads=6, max_position_embeddings=64)
SCALING = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=32)


def config_of(Config, key_heads, hidden, tied, theta, eps, scaling=None, **more):
    rope = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    return Config(num_key_value_heads=key_heads, intermediate_size=hidden, tie_word_embeddings=tied, rms_norm_eps=eps,
                  rope_parameters=rope, **SIZES, **more)


def gpt2_config():
    return transformers.GPT2Config(vocab_size=67, n_positions=64, n_embd=48, n_layer=3, n_head=6, resid_pdrop=0,
                                   embd_pdrop=0, attn_pdrop=0, activation_function="gelu_new")


LLAMA, MISTRAL, QWEN = transformers.LlamaConfig, transformers.MistralConfig, transformers.Qwen2Config
CASES = {
    "llama-2": lambda: config_of(LLAMA, 6, 128, False, 10000.0, 1e-5),
    "llama-3": lambda: config_of(LLAMA, 2, 100, False, 500000.0, 1e-5),
    "llama-3.2": lambda: config_of(LLAMA, 3, 128, True, 100.0, 1e-5, SCALING),
    "qwen2 tied": lambda: config_of(QWEN, 1, 80, True, 1000000.0, 1e-6),
    "qwen2": lambda: config_of(QWEN, 2, 80, False, 1000000.0, 1e-6),
    "mistral": lambda: config_of(MISTRAL, 2, 100, False, 10000.0, 1e-5, sliding_window=7),
    "qwen2 window": lambda: config_of(QWEN, 2, 80, False, 1000000.0, 1e-6, use_sliding_window=True, sliding_window=11,
                                      max_window_layers=0),
}
# name: configuration, r, alpha, target modules
ADAPTERS = {
    "gpt2 attn": (gpt2_config, 4, 8, ["c_attn"]),
    "gpt2 all": (gpt2_config, 3, 6, ["c_attn", "c_proj", "c_fc"]),
    "llama q, v": (CASES["llama-3"], 4, 16, ["q_proj", "v_proj"]),
    "llama all": (CASES["llama-3"], 8, 8, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
}


def random_model(config, seed):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    for name, p in model.named_parameters():
        is_gain = p.dim() == 1 and name.endswith("weight")
        p.data = 0.1 * torch.randn(p.shape) + is_gain
    return model.train()


def make_exact(model):
    """Norms and rotary positions in f64."""
    config, rope = model.config, model.config.rope_parameters
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


def adapted(name, seed):
    make, rank, alpha, targets = ADAPTERS[name]
    model = peft.get_peft_model(random_model(make(), seed), peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM", fan_in_fan_out=make is gpt2_config))
    torch.manual_seed(seed + 1)
    for key, p in model.named_parameters():
        if "lora_B" in key:
            p.data = 0.1 * torch.randn(p.shape)  # where B is 0, A has no gradient
    return model


def theirs_of(model, batches, dtype):
    model = model.to(dtype).train()
    base = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    if dtype == torch.float64 and not isinstance(base, transformers.GPT2LMHeadModel):
        make_exact(base)
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, betas=(0.9, 0.95), eps=1e-8,
                             weight_decay=0.1)
    return train_torch(model, adam, batches, lambda name, tensor: (
        name.replace("base_model.model.", "", 1).replace(".default.", ".").replace("transformer.", ""), tensor))


def differences(state, other, model, again, ids):
    problems = len(set(state) ^ set(other)) + sum(key in other and not torch.equal(t, other[key])
                                                  for key, t in state.items())
    with torch.no_grad():
        return problems + (not torch.equal(model.eval()(input_ids=ids).logits, again.eval()(input_ids=ids).logits))


def compare(table, name, label, ours, theirs, dtype):
    logits, gradient, loss = BOUNDS[dtype]
    label = f"{'f32' if dtype == torch.float32 else 'f64'} {label}"
    table.row(name, label, "logits", relative(ours["logits"], theirs["logits"]), logits)
    # A key bias shifts all scores of a query nearly equally; only rotation leaves it a small gradient.
    worst, whose = worst_of(pick(ours, "gradient"), pick(theirs, "gradient"),
                            lambda key: key.replace("k_proj.bias", "q_proj.bias"))
    table.row(name, label, f"gradient, worst: {whose.replace('model.layers.', '')}", worst, gradient)
    table.row(name, label, f"losses, {STEPS} steps", loss_difference(ours, theirs), loss)


def run_model(flags, table, name, folder, batches):
    config, theirs, ours = CASES[name](), f"{folder}/theirs", f"{folder}/ours"
    model = random_model(config, flags.seed)
    model.save_pretrained(theirs, max_shard_size="30KB")
    if not os.path.exists(f"{theirs}/model.safetensors.index.json"):
        sys.exit("failed: transformers wrote one file where shards were asked for")
    extra = f"--rate={RATE}", f"--seq={flags.seq}"
    train_ours(flags, folder, "llama", theirs, batches[:1], *extra, f"--save={ours}", "--shard=30000")
    again, info = transformers.AutoModelForCausalLM.from_pretrained(ours, output_loading_info=True, dtype="float32",
                                                                   attn_implementation="sdpa")
    problems = sum(len(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    problems += differences(model.state_dict(), again.state_dict(), model, again, torch.from_numpy(batches[0][0]))
    for key in ("model_type", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "num_key_value_heads",
                "intermediate_size", "max_position_embeddings", "sliding_window"):
        problems += getattr(config, key, None) != getattr(again.config, key, None)
    table.row(name, "files", "tensors, keys and logits that differ", problems, 0)
    builds = [("fused", []), ("textbook", ["--textbook"])]
    for dtype in BOUNDS:
        expected = theirs_of(random_model(config, flags.seed), batches, dtype)
        for build, more in builds[:1] if getattr(config, "sliding_window", None) else builds:
            more = more + ["--f64"] * (dtype == torch.float64)
            compare(table, name, build, train_ours(flags, folder, "llama", theirs, batches, *extra, *more), expected, dtype)


def run_adapters(flags, table, name, folder, batches):
    theirs, ours, weights = f"{folder}/theirs", f"{folder}/ours", f"{folder}/base"
    model = adapted(name, flags.seed)
    model.save_pretrained(theirs)
    base, kind, extra = adapted(name, flags.seed).unload(), "llama", [f"--seq={flags.seq}"]
    base.save_pretrained(weights)
    if ADAPTERS[name][0] is gpt2_config:
        kind, extra, weights = "char-gpt", ["--layers=3", "--heads=6", "--width=48", "--vocabulary=67", "--seq=64"], f"{folder}/gpt2"
        arrays.save_file({key.replace("transformer.", "", 1): t.detach().numpy() for key, t in base.state_dict().items()
                          if key != "lm_head.weight"}, weights)
    extra += [f"--rate={RATE}", f"--adapters={theirs}", f"--save-adapters={ours}"]
    for dtype in BOUNDS:
        got = train_ours(flags, folder, kind, weights, batches, *extra, *["--f64"] * (dtype == torch.float64))
        compare(table, name, "", got, theirs_of(adapted(name, flags.seed), batches, dtype), dtype)
        if dtype == torch.float32:
            again = peft.PeftModel.from_pretrained(adapted(name, flags.seed).unload(), ours)
            table.row(name, "files", "adapters and logits that differ", differences(
                *map(peft.get_peft_model_state_dict, (model, again)), model, again, torch.from_numpy(batches[0][0])), 0)


def main():
    flags = parse_flags("Compares models and adapters with transformers and PEFT.", seq=40, adapters="")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, PEFT {peft.__version__}")
    table = Table()
    ids = np.random.default_rng(flags.seed).integers(0, SIZES["vocab_size"], (STEPS, BATCH, flags.seq + 1))
    batches = [(np.ascontiguousarray(step[:, :-1]), np.ascontiguousarray(step[:, 1:])) for step in ids]
    for name in ADAPTERS if flags.adapters else CASES:
        with tempfile.TemporaryDirectory() as folder:
            (run_adapters if flags.adapters else run_model)(flags, table, name, folder, batches)
    table.end()


if __name__ == "__main__":
    main()
