"""transformers beside ours, on configurations with unusual values (tests/models/config_oracle_test.cpp).

  config_check.py write FILE        writes tests/models/config_cases.json, the cases of the tests that need no
      transformers: a config.json, the tensors beside it, tokens, and what transformers makes of them.
  config_check.py random FILE SEED  writes such a file with random sizes and values.

A tensor's numbers are not in the file: number k of tensor t, in the order of names, is 0.15 sin(1 + 0.37 k + 1.3 t), and
1 more in norms' weights. Exit status: 0 right, 77 transformers is missing.
"""
import json
import random
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

V, T = 24, 11

LLAMA = dict(model_type="llama", vocab_size=V, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
             num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-5)
QWEN = dict(LLAMA, model_type="qwen2")
MISTRAL = dict(LLAMA, model_type="mistral")
GPT = dict(model_type="gpt2", vocab_size=V, n_embd=24, n_layer=2, n_head=3, n_positions=T)
BERT = dict(model_type="bert", vocab_size=V, hidden_size=24, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=3, max_position_embeddings=16)
VIT = dict(model_type="vit", hidden_size=24, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3,
           image_size=32)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
LABELS = {str(i): f"class {i}" for i in range(5)}


def without(config, *keys):
    return {k: v for k, v in config.items() if k not in keys}


CASES = {
    "llama": LLAMA,
    "llama epsilon": dict(LLAMA, rms_norm_eps=0.3),
    "llama without epsilon and positions": without(LLAMA, "rms_norm_eps", "max_position_embeddings"),
    "llama key heads null": dict(LLAMA, num_key_value_heads=None),
    "llama tied": dict(LLAMA, tie_word_embeddings=True),
    "llama theta beside": dict(LLAMA, rope_theta=50.0),
    "llama theta beside parameters": dict(LLAMA, rope_theta=50.0, rope_parameters={"rope_type": "default"}),
    "llama theta within": dict(LLAMA, rope_parameters={"rope_type": "default", "rope_theta": 50.0}),
    "llama linear": dict(LLAMA, rope_theta=50.0, rope_scaling={"type": "linear", "factor": 3.0}),
    "llama dynamic": dict(LLAMA, max_position_embeddings=6, rope_scaling={"rope_type": "dynamic", "factor": 2.5}),
    "llama dynamic within": dict(LLAMA, rope_scaling={"type": "dynamic", "factor": 2.5}),
    "llama 3.1": dict(LLAMA, rope_theta=50.0, rope_scaling=LLAMA3),
    "llama 3.1 without length": dict(LLAMA, rope_parameters=dict(without(LLAMA3, "original_max_position_embeddings"),
                                                                 rope_theta=50.0)),
    "llama yarn": dict(LLAMA, rope_scaling=YARN),
    "llama yarn by old names": dict(LLAMA, rope_theta=100.0,
                                    rope_scaling=dict(without(YARN, "rope_type"), type="yarn", finetuned=True)),
    "llama yarn all": dict(LLAMA, rope_parameters=dict(YARN, rope_theta=100.0, beta_fast=8, beta_slow=2,
                                                       attention_factor=1.7, truncate=False)),
    "llama yarn mscale": dict(LLAMA, rope_scaling=dict(YARN, mscale=2.0, mscale_all_dim=0.5)),
    "llama yarn factor null": dict(LLAMA, rope_scaling=dict(YARN, factor=None)),
    "mistral": MISTRAL,
    "mistral window": dict(MISTRAL, sliding_window=3),
    "mistral no window": dict(MISTRAL, sliding_window=None),
    "mistral key heads missing": dict(without(MISTRAL, "num_key_value_heads"), num_attention_heads=8, hidden_size=32),
    "qwen2": QWEN,
    "qwen2 window unused": dict(QWEN, sliding_window=3, max_window_layers=0),
    "qwen2 window": dict(QWEN, use_sliding_window=True, sliding_window=3, max_window_layers=0),
    "qwen2 window above the layers": dict(QWEN, use_sliding_window=True, sliding_window=3, max_window_layers=2),
    "qwen2 layer types": dict(QWEN, use_sliding_window=True, sliding_window=3,
                              layer_types=["sliding_attention", "sliding_attention"]),
    "qwen2 full layer types": dict(QWEN, use_sliding_window=True, sliding_window=3, max_window_layers=0,
                                   layer_types=["full_attention", "full_attention"]),
    "gpt2": GPT,
    "gpt2 epsilon, erf": dict(GPT, layer_norm_epsilon=0.2, activation_function="gelu", n_head=2),
    "gpt2 other names": dict(without(GPT, "n_embd", "n_layer", "n_head", "n_positions"), hidden_size=24,
                             num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16,
                             activation_function="gelu_pytorch_tanh", n_inner=96),
    "bert": BERT,
    "bert epsilon, tanh": dict(BERT, layer_norm_eps=0.2, hidden_act="gelu_new", num_attention_heads=2),
    "bert for two tasks, old names": dict(BERT, layer_norm_eps=1e-3),
    "vit": dict(VIT, id2label=LABELS),
    "vit epsilon, tanh": dict(VIT, layer_norm_eps=0.2, hidden_act="gelu_new", num_channels=1, num_attention_heads=2),
}
CLASSES = {"llama": transformers.LlamaForCausalLM, "mistral": transformers.MistralForCausalLM,
           "qwen2": transformers.Qwen2ForCausalLM, "gpt2": transformers.GPT2LMHeadModel,
           "bert": transformers.BertForMaskedLM, "vit": transformers.ViTForImageClassification}
NAMES = {"llama": "tiny-llama", "mistral": "llama-2-7b", "qwen2": "qwen2.5-7b", "gpt2": "char-gpt", "bert": "bert-base",
         "vit": "vit-b16"}


def filled(Class, config):
    """The model that transformers reads from such a folder, and the names and shapes of the folder's tensors."""
    with tempfile.TemporaryDirectory() as folder:
        Class(Class.config_class.from_dict(config)).save_pretrained(folder)
        file, tensors = folder + "/model.safetensors", {}
        names = sorted(load_file(file).items())
        for t, (name, old) in enumerate(names):
            k = torch.arange(old.numel(), dtype=torch.float64)
            values = 0.15 * torch.sin(1 + 0.37 * k + 1.3 * t)
            is_gain = old.dim() == 1 and name.endswith("weight")
            tensors[name] = (values + (1 if is_gain else 0)).reshape(old.shape).float()
        save_file(tensors, file, {"format": "pt"})
        with open(folder + "/config.json", "w") as out:
            json.dump(config, out)
        model = Class.from_pretrained(folder, dtype=torch.float32).eval()
    return model, [[name, list(old.shape)] for name, old in names]


def rounded(values):
    return [float(f"{x:.8g}") for x in values.tolist()]


def case_of(name, config):
    kind = config["model_type"]
    with_pooler = "two tasks" in name
    Class = transformers.BertForPreTraining if with_pooler else CLASSES[kind]
    model, tensors = filled(Class, config)
    case = dict(name=name, model=NAMES[kind], config=config, tensors=tensors)
    with torch.no_grad():
        if kind == "vit":
            size, channels = model.config.image_size, model.config.num_channels
            pixels = torch.sin(0.11 * torch.arange(channels * size * size, dtype=torch.float64)).float()
            logits = model(pixels.reshape(1, channels, size, size)).logits[0]
            case["logits"] = rounded(logits)
        else:
            ids = [(7 * i * i + 3 * i + 5) % V for i in range(T + 1)]
            out = model(torch.tensor([ids[:T]]))
            logits = (out.prediction_logits if with_pooler else out.logits)[0]
            case["ids"] = ids
            case["logits"] = rounded(logits[-1])
            case["loss"] = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).item()
    if with_pooler:  # TensorFlow's names of norms
        old = lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        case["tensors"] = [[n, s, old(n)] for n, s in case["tensors"]]
    return case


def random_cases(seed):
    r = random.Random(seed)
    cases = {}
    for i in range(40):
        heads, head = r.choice([1, 2, 3, 4, 6]), r.choice([4, 8, 10])
        config = dict(r.choice([LLAMA, QWEN, MISTRAL, GPT, BERT, VIT]))
        kind, width = config["model_type"], heads * head
        epsilon = 10 ** r.uniform(-8, -0.3)
        if kind == "gpt2":
            config.update(n_embd=width, n_head=heads, n_layer=r.randint(1, 3), n_positions=r.randint(T, 30),
                          layer_norm_epsilon=epsilon, activation_function=r.choice(["gelu", "gelu_new", "gelu_fast"]),
                          initializer_range=r.random(), reorder_and_upcast_attn=r.random() < 0.5)
        elif kind in ("bert", "vit"):
            config.update(hidden_size=width, num_attention_heads=heads, num_hidden_layers=r.randint(1, 3),
                          intermediate_size=4 * width, layer_norm_eps=epsilon,
                          hidden_act=r.choice(["gelu", "gelu_new", "gelu_pytorch_tanh"]), initializer_range=r.random())
            if kind == "vit":
                config.update(image_size=16 * r.randint(1, 3), num_channels=r.choice([1, 3, 4]))
            else:
                config.update(max_position_embeddings=r.randint(T, 30))
        else:
            config.update(hidden_size=width, num_attention_heads=heads, num_hidden_layers=r.randint(1, 3),
                          num_key_value_heads=r.choice([k for k in range(1, heads + 1) if heads % k == 0]),
                          intermediate_size=r.randint(5, 60), rms_norm_eps=epsilon,
                          max_position_embeddings=r.choice([5, 8, 64]), tie_word_embeddings=r.random() < 0.5)
            if kind == "mistral":
                config["sliding_window"] = r.choice([None, 1, 2, 5, 100])
            if kind == "qwen2" and r.random() < 0.5:
                config.update(use_sliding_window=True, sliding_window=r.choice([1, 2, 5, 100]), max_window_layers=0)
            rope = r.choice([{"rope_type": "default"},
                             {"rope_type": "linear", "factor": r.uniform(0.5, 8)},
                             {"rope_type": "dynamic", "factor": r.uniform(1, 8)},
                             dict(LLAMA3, factor=r.uniform(1, 32), original_max_position_embeddings=r.choice([4, 16])),
                             dict(YARN, factor=r.uniform(1, 32), beta_fast=r.choice([4, 32]),
                                  original_max_position_embeddings=r.choice([4, 16]), truncate=r.random() < 0.5)])
            theta = 10 ** r.uniform(0.5, 6)
            if r.random() < 0.5:
                config.update(rope_theta=theta, rope_scaling=rope)
            else:
                config.update(rope_parameters=dict(rope, rope_theta=theta))
        cases[f"{kind} {i}"] = config
    return cases


def main():
    cases = CASES if sys.argv[1] == "write" else random_cases(int(sys.argv[3]))
    with open(sys.argv[2], "w") as out:
        rows = [json.dumps(case_of(name, config)) for name, config in cases.items()]
        out.write("[\n" + ",\n".join(rows) + "\n]\n")


main()
