"""Reads event files back with TensorBoard's own reader and holds them to the logs they were made of.

    python tests/python/tensorboard_scalars.py RUN LOGDIR/RUN [RUN LOGDIR/RUN ...]

Every number of every line of a run's metrics.jsonl has to be a scalar of the line's step, under its
path with a slash for the first dot, and equal to it as a 32-bit float, bit for bit; and there may be
no others.
"""

import json
import sys
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

NOT_QUANTITIES = {"schema", "step"}
NON_FINITE = {"NaN": np.nan, "inf": np.inf, "-inf": -np.inf}


def numbers(value, path):
    """Every number below a value of JSON, with its path."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from numbers(below, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from numbers(below, f"{path}.{index}")
    elif isinstance(value, str):
        if value in NON_FINITE:
            yield path, NON_FINITE[value]
    elif value is not None and not isinstance(value, bool):
        yield path, float(value)


def bits(value):
    with np.errstate(over="ignore"):  # What an f32 cannot hold is infinite.
        value = np.float32(value)
    return "NaN" if np.isnan(value) else int(value.view(np.uint32))


def logged(run):
    """{tag: {step: bits}} of a log; of a step that stands there twice, the last."""
    quantities = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for path, value in numbers(record, ""):
            if path not in NOT_QUANTITIES:
                tag = path.replace(".", "/", 1)
                quantities.setdefault(tag, {})[record["step"]] = bits(value)
    return quantities


def read_back(board):
    """The same of what TensorBoard reads."""
    everything = {"scalars": 0}
    events = EventAccumulator(str(board), size_guidance=everything).Reload()
    quantities = {}
    for tag in events.Tags()["scalars"]:
        scalars = events.Scalars(tag)
        quantities[tag] = {scalar.step: bits(scalar.value) for scalar in scalars}
        assert len(quantities[tag]) == len(scalars), f"{board}: {tag}: a step is there twice"
    return quantities


def check(run, board):
    expected, found = logged(run), read_back(board)
    missing, added = expected.keys() - found.keys(), found.keys() - expected.keys()
    assert not missing and not added, f"{run}: missing {missing}, added {added}"
    for tag, steps in expected.items():
        assert found[tag] == steps, f"{run}: {tag}: {found[tag]} instead of {steps}"
    count = sum(map(len, expected.values()))
    assert count, f"{run}: there is nothing to compare"
    print(f"{run}: {count} numbers of {len(expected)} quantities read back")


if __name__ == "__main__":
    paths = [Path(path) for path in sys.argv[1:]]
    if not paths or len(paths) % 2:
        sys.exit(__doc__)
    for run, board in zip(paths[::2], paths[1::2]):
        check(run, board)
