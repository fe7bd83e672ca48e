"""Times attention libraries on CPU in one run and prints a table. See README.md beside this file."""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

# name, batch, heads, kv_heads, queries, keys, dim, mask, directions
SHAPES = [
    ("H8 N512 D64", 1, 8, 8, 512, 512, 64, "full", "fb"),
    ("H8 N512 D64", 1, 8, 8, 512, 512, 64, "causal", "fb"),
    ("H8 N1024 D64", 1, 8, 8, 1024, 1024, 64, "full", "fb"),
    ("H8 N1024 D64", 1, 8, 8, 1024, 1024, 64, "causal", "fb"),
    ("H8 N2048 D64", 1, 8, 8, 2048, 2048, 64, "full", "fb"),
    ("H8 N2048 D64", 1, 8, 8, 2048, 2048, 64, "causal", "fb"),
    ("H8 N4096 D64", 1, 8, 8, 4096, 4096, 64, "full", "fb"),
    ("H8 N4096 D64", 1, 8, 8, 4096, 4096, 64, "causal", "fb"),
    ("H12 N1024 D128", 1, 12, 12, 1024, 1024, 128, "full", "fb"),
    ("H12 N1024 D128", 1, 12, 12, 1024, 1024, 128, "causal", "fb"),
    ("B32 H4 N64 D32", 32, 4, 4, 64, 64, 32, "full", "fb"),
    ("B32 H4 N64 D32", 32, 4, 4, 64, 64, 32, "causal", "fb"),
    ("B64 H4 N16 D32", 64, 4, 4, 16, 16, 32, "full", "fb"),
    ("B64 H4 N16 D32", 64, 4, 4, 16, 16, 32, "causal", "fb"),
    ("H16/4 N1024 D64", 1, 16, 4, 1024, 1024, 64, "causal", "fb"),
    ("H8 N4096 D64", 1, 8, 8, 4096, 4096, 64, "window:256", "fb"),
    ("B2 H8 N1024 D64", 2, 8, 8, 1024, 1024, 64, "padding", "fb"),
    ("decode H32 K4096 D128", 1, 32, 32, 1, 4096, 128, "full", "f"),
    ("decode H32/8 K4096 D128", 1, 32, 8, 1, 4096, 128, "full", "f"),
]
QUICK = [("H8 N512 D64", "full"), ("H8 N1024 D64", "causal"), ("B32 H4 N64 D32", "full")]
# Seconds of sleep before a library is timed.
PAUSE = 0.025


class Program:
    """A program that answers requests on standard input."""

    def __init__(self, command, threads):
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, request):
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            raise SystemExit(f"no answer to: {request}")
        return None if answer == ["unsupported"] else [float(word) for word in answer]

    def time(self, direction, shape, repetitions):
        """Seconds of each repetition of attention alone."""
        _, batch, heads, kv_heads, queries, keys, dim, mask, _ = shape
        words = ["time", direction, batch, heads, kv_heads, queries, keys, dim, dim, mask, repetitions]
        return self.ask(" ".join(map(str, words)))


class Torch:
    """PyTorch in this process."""

    def __init__(self, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.inputs = {}

    def prepare(self, shape):
        """Inputs and the equal mask, made once a shape."""
        if shape in self.inputs:
            return self.inputs[shape]
        self.inputs.clear()
        torch = self.torch
        _, batch, heads, kv_heads, queries, keys, dim, mask, _ = shape
        query = torch.randn(batch, heads, queries, dim)
        key, value = (torch.randn(batch, kv_heads, keys, dim) for _ in range(2))
        options = {}
        if heads != kv_heads:
            options["enable_gqa"] = True
        if mask == "causal":
            options["is_causal"] = True
        elif mask.startswith("window:"):
            window = int(mask.split(":")[1])
            distance = torch.arange(queries)[:, None] - torch.arange(keys)[None]
            options["attn_mask"] = (distance >= 0) & (distance < window)
        elif mask == "padding":
            options["attn_mask"] = (torch.arange(keys) < keys - keys // 4).expand(batch, 1, 1, keys)
        self.inputs[shape] = query, key, value, options
        return self.inputs[shape]

    def time(self, direction, shape, repetitions):
        torch = self.torch
        query, key, value, options = self.prepare(shape)
        both = direction == "both"
        inputs = [x.detach().requires_grad_(both) for x in (query, key, value)]
        grad = torch.ones_like(query)
        seconds = []
        for _ in range(repetitions):
            start = time.perf_counter()
            with torch.set_grad_enabled(both):
                out = torch.nn.functional.scaled_dot_product_attention(*inputs, **options)
            if both:
                torch.autograd.grad(out, inputs, grad)
            seconds.append(time.perf_counter() - start)
        return seconds


def work(shape, direction):
    """Floating point operations, without those of blocked scores."""
    _, batch, heads, _, queries, keys, dim, mask, _ = shape
    scores = queries * keys
    if mask == "causal":
        scores /= 2
    elif mask.startswith("window:"):
        scores = queries * int(mask.split(":")[1])
    elif mask == "padding":
        scores *= 0.75
    return (4 if direction == "forward" else 14) * batch * heads * scores * dim


def measure(libraries, shape, direction, rounds):
    """Median seconds of each library."""
    # So many repetitions that a turn takes some 30 ms, and the first two calls of a library warm it up.
    repetitions, times = {}, {name: [] for name in libraries}
    for name, library in libraries.items():
        time.sleep(PAUSE)
        warm = library.time(direction, shape, 2)
        if warm is None:
            continue
        repetitions[name] = max(1, min(1000, int(0.03 / warm[-1])))
    for _ in range(rounds):
        for name in repetitions:
            time.sleep(PAUSE)
            times[name].append(statistics.median(libraries[name].time(direction, shape, repetitions[name])))
    return {name: statistics.median(seconds) for name, seconds in times.items() if seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three shapes")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--shape", default="", help="only shapes whose name and mask contain this")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="one more program")
    parser.add_argument("--kernels", metavar="COMMAND", help="the kernels' program, instead of building it")
    options = parser.parse_args()

    command = options.kernels
    if command is None:
        build = ["cargo", "build", "--release", "-p", "kernels", "--example", "peer"]
        subprocess.run(build, cwd=ROOT, check=True)
        target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
        command = shlex.quote(str(pathlib.Path(target) / "release/examples/peer"))
    kernels = Program(command, options.threads)
    libraries = {"kernels": kernels}
    try:
        libraries["torch"] = Torch(options.threads)
    except ImportError:
        print("PyTorch is not installed: the kernels alone are timed")
    for peer in options.peer:
        name, command = peer.split("=", 1)
        libraries[name] = Program(command, options.threads)

    others = [name for name in libraries if name != "kernels"]
    head = ["shape", "mask", "direction", "ms", "GFLOP/s"]
    head += [f"{name} GFLOP/s" for name in others] + [f"to {name}" for name in others] + ["of limit"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    rows = []
    for shape in SHAPES:
        name, mask = shape[0], shape[7]
        if options.quick and (name, mask) not in QUICK or options.shape not in f"{name} {mask}":
            continue
        for letter in shape[8]:
            direction = {"f": "forward", "b": "both"}[letter]
            # Beside what it is compared with: the machine's speed changes in the course of a run.
            limit = max(kernels.ask("limit 0.05")[0] for _ in range(3))
            seconds = measure(libraries, shape, direction, options.rounds)
            rates = {library: work(shape, direction) / s / 1e9 for library, s in seconds.items()}
            ratios = {library: rates["kernels"] / rates[library] for library in others if library in rates}
            rows.append({
                "shape": name, "mask": mask, "direction": direction, "threads": options.threads,
                "seconds": seconds, "gflops": rates, "ratios": ratios,
                "limit": limit, "of_limit": rates["kernels"] / limit,
            })
            cells = [name, mask, direction, f"{1e3 * seconds['kernels']:.3f}", f"{rates['kernels']:.0f}"]
            cells += [f"{rates[x]:.0f}" if x in rates else "-" for x in others]
            cells += [f"{ratios[x]:.2f}" if x in ratios else "-" for x in others]
            print("| " + " | ".join(cells + [f"{rates['kernels'] / limit:.2f}"]) + " |", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
