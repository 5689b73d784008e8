"""Make the trace ``langid``: five detectors over Django's translations. See README.md."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import django
import numpy as np
from catalogues import Text, letters, texts
from detectors import DETECTORS

from ttamer.cascade import CascadeSpec
from ttamer.runtime.collecting import collect
from ttamer.trace.io import columns_of
from ttamer.trace.trace import Trace

PASSES = 5
SEED = 0
STRINGS_PER_LANGUAGE = 4
HERE = Path(__file__).parent
DATA = Path(__file__).parents[2] / "src" / "ttamer" / "datasets" / "data"


def main() -> None:
    """Ask, split, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DATA, help="where to write (the package)")
    parser.add_argument("--rows", type=int, help="use only this many strings, for a trial run")
    options = parser.parse_args()
    source = Path(django.__file__).parent
    kept, left_out = texts(source)
    order = np.random.default_rng(SEED).permutation(len(kept))
    rows = [kept[i] for i in order][: options.rows]
    say(f"{len(rows)} strings, {len({t.language for t in rows})} languages; left out: {left_out}")
    trace = ask(rows)
    part = np.array([text.part for text in rows])
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("fit", "test"):
        write(trace.take(part == name), options.out / f"langid-{name}.npz")
    write_messages(rows, part, HERE / "langid-messages.npz")
    write_strings(rows, part, HERE / "langid-strings.json")
    write_facts(rows, part, left_out, options.out / "langid.json")
    notice = next(source.parent.glob("[dD]jango-*.dist-info")).rglob("LICENSE")
    (HERE / "DJANGO-LICENSE.txt").write_text(next(notice).read_text("utf-8"), "utf-8")
    report(trace)


def ask(rows: list[Text]) -> Trace:
    """Ask each detector about every string, in passes of its own; costs in microseconds.

    A row's cost is the least of the passes: what is above it is other work on the machine. Calling
    again at once would find the string's n-grams in the processor's cache, and mixing detectors
    would empty it at every call.
    """
    inputs, labels = [row.text for row in rows], [row.language for row in rows]
    confidence, prediction, cost = [], [], []
    for name, detector in DETECTORS.items():
        say(f"{name}: loading")
        detect = detector.build()
        passes = [collect(inputs, {name: detect}, labels=labels, warmup=3) for _ in range(PASSES)]
        first = passes[0]
        for again in passes[1:]:
            # lingua adds up in no fixed order: its last bits differ from call to call.
            if not np.allclose(again.confidence, first.confidence, rtol=0, atol=1e-9):
                raise SystemExit(f"{name} is not deterministic: fix it before making a trace")
            changed = int((again.prediction != first.prediction).sum())
            if changed:
                say(f"{name}: {changed} answers changed between passes (ties)")
        confidence.append(first.confidence[:, 0].round(5))
        classes = np.array([*first.classes, None], dtype=object)
        prediction.append(classes[first.prediction[:, 0]])
        seconds = np.min([each.cost[:, 0] for each in passes], axis=0)
        cost.append((seconds * 1e6).round(1))
        means = ", ".join(f"{each.cost.mean() * 1e6:.1f}" for each in passes)
        say(f"{name}: mean of each pass {means} µs; of the least {cost[-1].mean():.1f} µs")
        del detect  # lingua holds 1.4 GB
    costs = {name: round(float(c.mean()), 1) for name, c in zip(DETECTORS, cost, strict=True)}
    return Trace.from_arrays(
        CascadeSpec.of(costs, name="langid"),
        np.column_stack(confidence),
        prediction=np.column_stack(prediction),
        label=labels,
        cost=np.column_stack(cost),
        inputs={"letters": np.array([letters(text) for text in inputs], dtype=float)},
    )


def write(trace: Trace, path: Path) -> None:
    """Write a small NPZ: numbers in single precision, everything compressed."""
    columns = columns_of(trace)
    small = {"f": np.float32, "i": np.int16}
    arrays = {name: values.astype(small[values.dtype.kind]) for name, values in columns.items()}
    arrays["classes"] = np.array(trace.classes)
    arrays["cascade"] = np.array(trace.spec.to_toml())
    write_arrays(arrays, path)


def write_arrays(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Write arrays with a fixed date: equal arrays, equal files."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, values in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, values, allow_pickle=False)


def write_messages(rows: list[Text], part: np.ndarray, path: Path) -> None:
    """Write the number of each row's message: rows of one message are not independent."""
    numbers = {message: i for i, message in enumerate(sorted({row.message for row in rows}))}
    message = np.array([numbers[row.message] for row in rows], np.int16)
    write_arrays({name: message[part == name] for name in ("fit", "test")}, path)


def write_strings(rows: list[Text], part: np.ndarray, path: Path) -> None:
    """Write a few strings of the test part for each language, with their rows."""
    test = [row for row, where in zip(rows, part, strict=True) if where == "test"]
    taken: dict[str, int] = {}
    strings = []
    for number, row in enumerate(test):
        taken[row.language] = taken.get(row.language, 0) + 1
        if taken[row.language] <= STRINGS_PER_LANGUAGE:
            strings.append({"row": number, "text": row.text})
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in strings)
    path.write_text(f"[\n{lines}\n]\n", "utf-8")


def write_facts(rows: list[Text], part: np.ndarray, left_out: dict[str, int], path: Path) -> None:
    """Write what the trace is and how it was made."""
    messages = {name: len({r.message for r in rows if r.part == name}) for name in ("fit", "test")}
    facts = {
        "title": "Which language is this? Five detectors from PyPI over Django's translations",
        "made": "by experiments/langid/collect.py with ttamer.runtime.collecting.collect",
        "source": f"the message catalogues of Django {version('Django')} (BSD-3-Clause)",
        "licence": "The trace holds numbers and language codes and no string: Apache-2.0, as this "
        "package.",
        "cost": "microseconds of wall time per call, the least of "
        f"{PASSES} passes; {cpu()}, one thread, Python {platform.python_version()}",
        "label": "the language of the catalogue, as an ISO 639 code",
        "signals": {"letters": "how many letters the string has"},
        "languages": len({row.language for row in rows}),
        "rows": {name: int((part == name).sum()) for name in ("fit", "test")},
        "messages": messages,
        "left_out": left_out,
        "nodes": {
            name: {
                "package": f"{detector.package} {version(detector.package)}",
                "licence": detector.licence,
                "confidence": detector.confidence,
            }
            for name, detector in DETECTORS.items()
        },
    }
    path.write_text(json.dumps(facts, ensure_ascii=False, indent=2) + "\n", "utf-8")


def cpu() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


def report(trace: Trace) -> None:
    """Print one line for each detector."""
    wrong = trace.loss > 0
    for i, name in enumerate(trace.names):
        cost = trace.cost[:, i]
        say(
            f"{name:10} accuracy {1 - wrong[:, i].mean():.4f}  mean {cost.mean():7.1f} µs  "
            f"median {np.median(cost):6.1f} µs"
        )
    say(f"any right  {1 - wrong.all(axis=1).mean():.4f}")


def say(line: str) -> None:
    """Show progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
