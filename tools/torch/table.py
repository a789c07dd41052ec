"""Ten models at three budgets each: the table of docs/lab/torch-plans.md.

    python tools/torch/table.py build/bin/thimble [MODEL...]

Needs torch, transformers and torchvision. Each model runs one step without a plan, one for each plan, and one for each
of three settings of activation_memory_budget, compiled by aot_eager_decomp_partition.
"""
import json
import subprocess
import sys
import tempfile

import torch
import torchvision
import transformers

from record import record
from run import Planned
from tracing import measure_peak

cross_entropy = torch.nn.functional.cross_entropy


def language(kind, **sizes):
    config = getattr(transformers, kind + "Config")(vocab_size=512, **sizes)
    head = "ForMaskedLM" if kind == "Bert" else "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    model = getattr(transformers, kind + head)(config)
    tokens = torch.randint(0, 512, (4, 64))
    extra = {} if kind == "Bert" else {"use_cache": False}
    return model, lambda: model(input_ids=tokens, labels=tokens, **extra).loss


def t5():
    config = transformers.T5Config(vocab_size=512, d_model=64, d_kv=16, d_ff=256, num_layers=3, num_heads=4,
                                   decoder_start_token_id=0, pad_token_id=0)
    model, tokens = transformers.T5ForConditionalGeneration(config), torch.randint(0, 512, (4, 64))
    return model, lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss


def vit():
    config = transformers.ViTConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256,
                                    image_size=32, patch_size=4, num_labels=10, hidden_dropout_prob=0.1)
    model, images = transformers.ViTForImageClassification(config), torch.randn(8, 3, 32, 32)
    labels = torch.randint(0, 10, (8,))
    return model, lambda: model(pixel_values=images, labels=labels).loss


def images(name, batch, side):
    model = getattr(torchvision.models, name)(num_classes=10)
    pixels, labels = torch.randn(batch, 3, side, side), torch.randint(0, 10, (batch,))
    return model, lambda: cross_entropy(model(pixels), labels)


models = {
    "GPT-2": lambda: language("GPT2", n_positions=64, n_embd=64, n_layer=4, n_head=4),
    "BERT": lambda: language("Bert", hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
                             intermediate_size=256, max_position_embeddings=64),
    "Llama": lambda: language("Llama", hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
                              num_key_value_heads=2, intermediate_size=192),
    "T5": t5,
    "ViT": vit,
    "resnet18": lambda: images("resnet18", 16, 96),
    "squeezenet1_1": lambda: images("squeezenet1_1", 8, 64),
    "mobilenet_v3_small": lambda: images("mobilenet_v3_small", 16, 64),
    "shufflenet_v2_x0_5": lambda: images("shufflenet_v2_x0_5", 16, 64),
    "mnasnet0_5": lambda: images("mnasnet0_5", 16, 64),
}


def plan_of(program, graph, budget=None):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(graph, file)
        file.flush()
        flags = ["--budget", str(budget)] if budget else []
        done = subprocess.run([program, "plan", "--graph", file.name, *flags, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


class Case:
    def __init__(self, name):
        torch.manual_seed(1)
        self.model, self.forward = models[name]()
        self.buffers = [b.clone() for b in self.model.buffers()]

    def step(self, forward):
        """Peak, loss, gradients and buffers of one step from the same state."""
        torch.manual_seed(2)
        for buffer, old in zip(self.model.buffers(), self.buffers):
            buffer.data.copy_(old)
        for p in self.model.parameters():
            p.grad = None

        def run():
            loss = forward()
            loss.backward()
            return loss.detach()

        loss, peak = measure_peak(run)
        found = [loss, *(p.grad for p in self.model.parameters()), *self.model.buffers()]
        return peak, [None if t is None else t.clone() for t in found]


def same(a, b):
    return all(x is y if x is None or y is None else torch.equal(x, y) for x, y in zip(a, b))


def compiled_peaks(case, plain):
    """The peak of each setting of activation_memory_budget, and whether the bits are those of the eager step."""
    for share in (1.0, 0.5, 0.0):
        torch._dynamo.reset()
        with torch._functorch.config.patch(activation_memory_budget=share):
            forward = torch.compile(case.forward, backend="aot_eager_decomp_partition")
            case.step(forward)
            peak, found = case.step(forward)
        yield share, peak, same(plain, found)


def main(program, *names):
    torch.set_num_threads(1)
    plain, budgets = {}, {}
    for name in names or models:
        case = Case(name)
        case.step(case.forward)  # a process's first step allocates more
        peak, plain[name] = case.step(case.forward)
        graph = record(case.forward, case.model, name)
        full = plan_of(program, graph)
        print(f"{name}: {len(graph['nodes'])} nodes, {peak} bytes, predicted {full['peak_bytes']}, "
              f"smallest {full['smallest_bytes']}", flush=True)
        # Fractions of the way from keeping everything to the smallest plan.
        budgets[name] = [int(peak - part * (peak - full["smallest_bytes"])) for part in (0.25, 0.5, 0.95)]
        for budget in budgets[name]:
            plan = plan_of(program, graph, budget)
            measured, found = case.step(lambda: Planned(graph, plan)(case.forward))
            print(f"| {name} | {peak:,} | {budget:,} | {plan['peak_bytes']:,} | {measured:,} | "
                  f"{100 * (plan['peak_bytes'] / measured - 1):+.3f} % | "
                  f"{'yes' if same(plain[name], found) else 'NO'} | "
                  f"{100 * plan['recompute_seconds'] / (plan['step_seconds'] - plan['recompute_seconds']):.1f} % | "
                  f"{100 * plan['time_gap']:.1f} % |", flush=True)
    for name, sizes in budgets.items():
        try:
            for share, peak, is_same in compiled_peaks(Case(name), plain[name]):
                print(f"| {name} | {share} | {peak:,} | {sum(peak <= b for b in sizes)} of {len(sizes)} | "
                      f"{'yes' if is_same else 'no'} |", flush=True)
        except Exception as error:  # the compiler refuses the program
            print(f"| {name} | {type(error).__name__}: {str(error).splitlines()[0]} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
