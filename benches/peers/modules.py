"""Times whole modules and the training example's step against PyTorch's. See README.md beside this file."""

import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import tempfile
import time

import torch

from run import PAUSE, ROOT, Program

# batch, length, d_model, heads
MODULES = [(8, 256, 512, 8), (1, 1024, 512, 8), (64, 17, 64, 1), (64, 17, 256, 1)]
# d_k of the training example: its batch, and the size of its task, are these.
STEPS = [64, 256]
BATCH, PAIRS, SYMBOLS = 64, 16, 32


class TorchModule:
    """nn.MultiheadAttention, forward and backward to its input and parameters."""

    def __init__(self, batch, length, d_model, heads):
        self.layer = torch.nn.MultiheadAttention(d_model, heads, batch_first=True)
        self.x = torch.randn(batch, length, d_model)
        self.weight = torch.randn_like(self.x)

    def time(self, repetitions):
        seconds = []
        for _ in range(repetitions):
            self.layer.zero_grad()
            x = self.x.detach().requires_grad_()
            start = time.perf_counter()
            output, _ = self.layer(x, x, x, need_weights=False)
            (output * self.weight).sum().backward()
            seconds.append(time.perf_counter() - start)
        return seconds


class TorchStep(torch.nn.Module):
    """The training example's model of one block and one head, with its optimiser."""

    def __init__(self, d_k):
        super().__init__()
        self.keys = torch.nn.Embedding(SYMBOLS, d_k)
        self.values = torch.nn.Embedding(SYMBOLS, d_k)
        self.norm = torch.nn.LayerNorm(d_k)
        self.query, self.key, self.value, self.output = (
            torch.nn.Linear(d_k, d_k, bias=False) for _ in range(4)
        )
        self.answer = torch.nn.Linear(d_k, SYMBOLS, bias=False)

    def forward(self, keys, values, question):
        pairs = self.keys(keys) + self.values(values)
        tokens = torch.cat([pairs, self.keys(question)], 1)
        normed = self.norm(tokens)
        pairs, question = normed[:, :-1], normed[:, -1:]
        heads = [projection(x).unsqueeze(1) for projection, x in
                 ((self.query, question), (self.key, pairs), (self.value, pairs))]
        context = torch.nn.functional.scaled_dot_product_attention(*heads).squeeze(1)
        return self.answer((tokens[:, -1:] + self.output(context)).squeeze(1))

    def time(self, steps):
        """Seconds a step, batches drawn beforehand."""
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        batches = []
        for _ in range(steps):
            keys = torch.rand(BATCH, SYMBOLS).argsort(1)[:, :PAIRS]
            values = torch.randint(SYMBOLS, (BATCH, PAIRS))
            asked = torch.randint(PAIRS, (BATCH, 1))
            batches.append((keys, values, keys.gather(1, asked), values.gather(1, asked).squeeze(1)))
        start = time.perf_counter()
        for keys, values, question, answer in batches:
            loss = torch.nn.functional.cross_entropy(self(keys, values, question), answer)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        return (time.perf_counter() - start) / steps


def train_step(program, d_k, steps, threads):
    """Seconds a step of the training example, its batches drawn on the way, nothing logged but the first step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "run", "--d-k", str(d_k), "--steps", str(steps), "--log-every", str(steps)]
        command += ["--out", str(pathlib.Path(folder) / "run")]
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
        text = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return float(re.search(r"steps in ([0-9.]+) s", text)[1]) / steps


def build(package, *selection):
    subprocess.run(["cargo", "build", "--release", "-p", package, *selection], cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["modules", "steps"])
    parser.add_argument("--burn-peer", metavar="COMMAND", help="the program, instead of building it")
    parser.add_argument("--train", metavar="COMMAND", help="the training example, instead of building it")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []

    def row(name, samples):
        seconds = {library: statistics.median(times) for library, times in samples.items()}
        rows.append({"case": name, "threads": options.threads, "seconds": seconds})
        cells = [name] + [f"{1e3 * s:.2f} ms" for s in seconds.values()]
        ratios = [f"{s / seconds['layers']:.2f}" for library, s in seconds.items() if library != "layers"]
        print("| " + " | ".join(cells + ratios) + " |", flush=True)

    if options.only != "steps":
        peer = options.burn_peer
        if peer is None:
            peer = shlex.quote(str(build("layers", "--example", "burn_peer") / "examples/burn_peer"))
        programs = {name: Program(f"{peer} {name}", options.threads) for name in ("layers", "burn")}
        print("| module, forward and backward | layers | burn-nn | PyTorch | to burn-nn | to PyTorch |\n|" + "---|" * 6)
        for shape in MODULES:
            batch, length, d_model, heads = shape
            words = " ".join(map(str, shape))
            library = {
                "layers": lambda n: programs["layers"].ask(f"module {words} {n}"),
                "burn": lambda n: programs["burn"].ask(f"module {words} {n}"),
                "torch": TorchModule(*shape).time,
            }
            repetitions = {}
            for name, timed in library.items():
                time.sleep(PAUSE)
                repetitions[name] = max(1, min(1000, int(0.1 / timed(3)[-1])))
            samples = {name: [] for name in library}
            for _ in range(options.rounds):
                for name, timed in library.items():
                    time.sleep(PAUSE)
                    samples[name].append(statistics.median(timed(repetitions[name])))
            row(f"B {batch}, N {length}, d_model {d_model}, {heads} heads", samples)

    if options.only != "modules":
        program = options.train or str(build("train") / "train")
        print("\n| training example, one step | layers | PyTorch | to PyTorch |\n|" + "---|" * 4)
        for d_k in STEPS:
            samples = {"layers": [], "torch": []}
            for _ in range(options.rounds):
                time.sleep(PAUSE)
                samples["layers"].append(train_step(program, d_k, 3000, options.threads))
                samples["torch"].append(TorchStep(d_k).time(1000))
            row(f"d_k {d_k}, batch {BATCH}", samples)

    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
