"""Exits on models of transformers: the answers of the plain model, for any padding and batch."""

import json
import sys

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    MPNetConfig,
    MPNetModel,
)

from ttamer.errors import ArgumentError, MissingExtra
from ttamer.torch.costs import count_flops
from ttamer.torch.decide import scores_of
from ttamer.torch.devices import autocast, take
from ttamer.torch.networks.decoders import exits_on_gpt2, exits_on_llama, gpt2, llama
from ttamer.torch.networks.encoders import bert, exits_on_bert, exits_on_mpnet, mpnet
from ttamer.torch.networks.tokens import trim_padding
from ttamer.torch.runner import Runner
from ttamer.torch.tables import threshold_tables
from ttamer.torch.tracing import trace_of
from ttamer.torch.training import Recipe, train

CLASSES = 3
LENGTHS = (7, 1, 4, 5)


def bert_config(**changes):
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 16}
    return BertConfig(**(sizes | changes))


def gpt2_config(**changes):
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 16}
    return GPT2Config(**(sizes | {"bos_token_id": 1, "eos_token_id": 2} | changes))


def mpnet_config(**changes):
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 18}  # two more than positions
    return MPNetConfig(**(sizes | changes))


def llama_config(**changes):
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16}
    return LlamaConfig(**(sizes | {"tie_word_embeddings": True, "use_cache": False} | changes))


def build(kind, **changes):
    """Return a plain model and the network with exits on it; weights large enough to matter."""
    torch.manual_seed(0)
    family, _, pool = kind.partition("-")
    kinds = {"gpt2": (GPT2Model, gpt2_config), "bert": (BertModel, bert_config),
             "mpnet": (MPNetModel, mpnet_config), "llama": (LlamaModel, llama_config)}  # fmt: skip
    make, config = kinds[family]
    model = make(config(**changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    if family in ("gpt2", "llama"):
        exits_on = exits_on_gpt2 if family == "gpt2" else exits_on_llama
        return model, exits_on(model, classes=CLASSES).eval()
    exits_on = exits_on_bert if family == "bert" else exits_on_mpnet
    return model, exits_on(model, classes=CLASSES, pool=pool).eval()


KINDS = ("bert-first", "bert-mean", "gpt2", "mpnet-mean", "mpnet-first", "llama")
LIKE_BERT = ("bert-first", "mpnet-first")
DECODERS = ("gpt2", "llama")
IMPLEMENTATIONS = [
    (kind, each)
    for kind in KINDS
    for each in (("eager",) if kind.startswith("mpnet") else ("sdpa", "eager"))
]
"""Of attention; MPNet of transformers has one."""


def tokens(*, width=8, padding=0):
    """Return the same four inputs, padded on the right to a width."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.full((len(LENGTHS), width), padding)
    mask = torch.zeros((len(LENGTHS), width), dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.randint(3, 50, (length,), generator=generator)
        mask[row, :length] = True
    return ids, mask


def plain_vectors(kind, hidden):
    """Pool the plain model's hidden states row by row."""
    rows = [hidden[row, :length] for row, length in enumerate(LENGTHS)]
    if kind in DECODERS:
        return torch.stack([row[-1] for row in rows])
    return torch.stack([row[0] if kind.endswith("first") else row.mean(0) for row in rows])


@pytest.mark.parametrize(("kind", "implementation"), IMPLEMENTATIONS)
def test_every_exit_matches_the_plain_model(kind, implementation):
    model, network = build(kind, attn_implementation=implementation)
    ids, mask = tokens()
    with torch.inference_mode():
        plain = model(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True)
        logits = network((ids, mask))
        # hidden_states[k] is the output of layer k; a decoder's last has passed its final norm
        for k, ramp in enumerate(network.ramps(), start=1):
            expected = ramp.layers(plain_vectors(kind, plain.hidden_states[k]))
            torch.testing.assert_close(logits[k - 1], expected, atol=1e-5, rtol=1e-5)
        vectors = plain_vectors(kind, plain.last_hidden_state)
        head = network.exits[-1].layers
        if kind in LIKE_BERT:
            expected = head[2:](plain.pooler_output)
        else:
            expected = (head[1:] if kind in DECODERS else head)(vectors)
        torch.testing.assert_close(logits[-1], expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(network.full((ids, mask)), logits[-1])
    assert all(each.shape == (4, CLASSES) for each in logits)
    assert len({tuple(each[0].tolist()) for each in logits}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_answer(kind):
    _, network = build(kind)
    with torch.inference_mode():
        short = torch.stack(network(tokens(width=7)))
        long = torch.stack(network(tokens(width=15, padding=9)))
        ids, mask = tokens()
        as_numbers = torch.stack(network((ids, mask.long())))
        alone = [
            torch.stack(network((ids[row : row + 1, :length], mask[row : row + 1, :length])))
            for row, length in enumerate(LENGTHS)
        ]
    torch.testing.assert_close(long, short, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(as_numbers, short, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat(alone, dim=1), short, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("kind", "implementation"), IMPLEMENTATIONS)
def test_a_row_of_padding_alone_changes_no_other(kind, precision, implementation):
    _, network = build(kind, attn_implementation=implementation)
    ids, mask = tokens()
    emptied = mask.clone()
    emptied[2] = False
    with torch.inference_mode(), autocast(torch.device("cpu"), precision):
        logits, expected = torch.stack(network((ids, emptied))), torch.stack(network((ids, mask)))
    assert logits.isfinite().all()
    rest = [0, 1, 3]
    torch.testing.assert_close(logits[:, rest], expected[:, rest], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", DECODERS)
def test_decoders_attend_to_earlier_tokens_only(kind):
    _, network = build(kind)
    ids, mask = tokens(width=7)
    later = ids.clone()
    later[0, 5:] = 3
    with torch.inference_mode():
        hidden = network.segments[1](network.segments[0]((ids, mask)))[0]
        changed = network.segments[1](network.segments[0]((later, mask)))[0]
    torch.testing.assert_close(changed[0, :5], hidden[0, :5])
    assert not torch.allclose(changed[0, 5:], hidden[0, 5:])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_leave_part_way(kind):
    _, network = build(kind)
    inputs = tokens()
    rows = torch.tensor([3, 1])
    with torch.inference_mode():
        everyone = network(inputs)
        value = take(network.segments[0](inputs), rows)
        for segment, ramp, expected in zip(
            network.segments[1:], network.exits[1:], everyone[1:], strict=True
        ):
            value = segment(value)
            torch.testing.assert_close(ramp(value), expected[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss_and_ramps_leave_the_backbone_alone(kind, precision):
    _, network = build(kind)
    loader = [(tokens(), torch.tensor([0, 1, 2, 0]))] * 6
    recipe = {"epochs": 3, "rate": 1e-2, "optimiser": "adamw", "clip": 1.0, "precision": precision}
    losses = train(network, loader, Recipe("backbone", **recipe))
    assert losses[-1] < losses[0]
    before = network.full(tokens())
    losses = train(network, loader, Recipe("ramps", **recipe))
    assert losses[-1] < losses[0]
    assert torch.equal(network.full(tokens()), before)


@pytest.mark.parametrize("kind", KINDS)
def test_traces_and_costs_come_from_pairs(kind):
    _, network = build(kind)
    trace = trace_of(network, [(tokens(), torch.tensor([0, 1, 2, 0]))], classes=["a", "b", "c"])
    assert (len(trace), trace.names) == (4, network.names)
    costs = count_flops(network, tokens(width=7))
    assert costs.segments[0] == costs.segments[1] == costs.segments[2] > 10 * costs.ramps[0] > 0


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_gives_its_weights_in_single_precision(kind, half, tmp_path):
    model, network = build(kind)
    (model.half() if half else model).save_pretrained(tmp_path)
    model.float()
    if kind in DECODERS:
        loaded = (gpt2 if kind == "gpt2" else llama)(weights=tmp_path, classes=CLASSES)
    else:
        family, _, pool = kind.partition("-")
        make = bert if family == "bert" else mpnet
        loaded = make(weights=str(tmp_path), classes=CLASSES, pool=pool)
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    loaded.exits.load_state_dict(network.exits.state_dict())
    with torch.inference_mode():
        expected, found = network(tokens()), loaded.eval()(tokens())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_config_gives_random_weights_and_none_the_papers_size():
    assert bert(bert_config(), classes=2).names == ("layer1", "layer2", "full")
    assert gpt2(gpt2_config(), classes=2).names == ("block1", "block2", "full")
    with torch.device("meta"):
        assert len(bert(classes=2).names) == 12
        assert len(gpt2(classes=2).names) == 12
        assert len(mpnet(classes=2).names) == 12
        assert len(llama(classes=2).names) == 30


def test_one_layer_has_the_head_alone():
    network = bert(bert_config(num_hidden_layers=1), classes=2)
    assert network.names == ("full",)
    assert not list(network.ramps())


def test_a_model_without_pooler_gets_a_head_of_its_own():
    model = BertModel(bert_config(), add_pooling_layer=False)
    network = exits_on_bert(model, classes=2)
    assert [type(layer) for layer in network.exits[-1].layers] == [nn.LayerNorm, nn.Linear]


@pytest.mark.parametrize("kind", ["bert-first", "mpnet-mean"])
def test_ramps_like_the_head_of_bert(kind):
    model, network = build(kind)
    family, _, pool = kind.partition("-")
    exits_on = exits_on_bert if family == "bert" else exits_on_mpnet
    dense = exits_on(model, classes=2, pool=pool, ramps="dense")
    kinds = [nn.Linear, nn.Tanh, nn.Dropout, nn.Linear]
    assert [type(layer) for layer in next(dense.ramps()).layers] == kinds
    assert [type(layer) for layer in next(network.ramps()).layers] == [nn.LayerNorm, nn.Linear]
    assert (network.config["ramps"], dense.config["ramps"]) == ("linear", "dense")


def test_other_models_are_refused():
    task = BertForSequenceClassification(bert_config())
    with pytest.raises(ArgumentError, match=r"not BertForSequenceClassification.*\.bert"):
        exits_on_bert(task, classes=2)
    with pytest.raises(ArgumentError, match=r"not BertModel.*\.transformer"):
        exits_on_gpt2(task.bert, classes=2)
    with pytest.raises(ArgumentError, match="is_decoder"):
        bert(bert_config(is_decoder=True), classes=2)
    with pytest.raises(ArgumentError, match='"first" or "mean" for an encoder, not \'last\''):
        bert(bert_config(), classes=2, pool="last")
    with pytest.raises(ArgumentError, match='"linear" or "dense", not \'deep\''):
        mpnet(mpnet_config(), classes=2, ramps="deep")


@pytest.mark.parametrize(
    ("make", "config"),
    [(bert, bert_config), (gpt2, gpt2_config), (mpnet, mpnet_config), (llama, llama_config)],
)
def test_a_config_and_weights_are_one_too_many(make, config, tmp_path):
    with pytest.raises(ArgumentError, match="not both"):
        make(config(), classes=2, weights=tmp_path)


def test_directories_that_hold_no_such_model_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"nowhere: no config\.json"):
        bert(weights=tmp_path / "nowhere", classes=2)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ArgumentError, match=r"no config\.json with a model_type"):
        bert(weights=tmp_path, classes=2)
    GPT2Model(gpt2_config()).save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="of type 'gpt2', not 'bert'"):
        bert(weights=tmp_path, classes=2)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ArgumentError, match="cannot be loaded"):
        gpt2(weights=tmp_path, classes=2)


def test_weights_that_lack_a_layer_are_refused(tmp_path):
    BertModel(bert_config(num_hidden_layers=2)).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(
        ArgumentError, match=r"16 weights of BertModel are missing.*encoder\.layer\.2"
    ):
        bert(weights=tmp_path, classes=2)


@pytest.mark.parametrize("kind", ["bert-mean", "gpt2", "mpnet-mean", "llama"])
def test_inputs_that_are_no_pair_of_one_shape_are_refused(kind):
    _, network = build(kind)
    ids, mask = tokens()
    with pytest.raises(ArgumentError, match=r"a pair \(ids, mask\), not Tensor"):
        network(ids)
    with pytest.raises(ArgumentError, match=r"shape \(4, 8\) and the mask \(4, 7\)"):
        network((ids, mask[:, :7]))
    with pytest.raises(ArgumentError, match="17 tokens long, and this model takes 1 to 16"):
        network(tokens(width=17))


def test_a_language_model_with_tied_embeddings_gives_its_decoder(tmp_path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config()).eval()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    network = exits_on_llama(model, classes=CLASSES).eval()
    model.save_pretrained(tmp_path)
    loaded = llama(weights=tmp_path, classes=CLASSES).eval()
    loaded.exits.load_state_dict(network.exits.state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(loaded(tokens()), network(tokens()))
    with pytest.raises(ArgumentError, match=r"not LlamaForSequenceClassification.*\.model"):
        exits_on_llama(LlamaForSequenceClassification(llama_config()), classes=2)
    with pytest.raises(ArgumentError, match=r"not LlamaModel.*\.mpnet"):
        exits_on_mpnet(model.model, classes=2)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"needs transformers.*ttamer\[torch\]"):
        bert(classes=2)
    with pytest.raises(MissingExtra, match=r"ttamer\[torch\]"):
        exits_on_gpt2(nn.Identity(), classes=2)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_leaves_with_the_long_texts(kind, monkeypatch):
    """After the rows that are done have left, the rest is as wide as its longest text."""
    monkeypatch.setattr("ttamer.torch.networks.tokens.WIDTHS", 1)
    _, network = build(kind)
    ids, mask = tokens(width=12, padding=3)
    with torch.inference_mode():
        first, _, last = (scores_of(logits).confidence for logits in network((ids, mask)))
    ordered = first.sort().values
    middle = float((ordered[1] + ordered[2]) / 2)
    widths = []
    network.segments[1].register_forward_pre_hook(lambda _, value: widths.append(value[0][0].shape))
    answers = Runner(network, threshold_tables(np.array([middle, np.nan, 0.0])))((ids, mask))
    kept = first < middle
    longest = max(length for length, stays in zip(LENGTHS, kept, strict=True) if stays)
    assert [tuple(shape[:2]) for shape in widths] == [(2, longest)]
    torch.testing.assert_close(answers.confidence[kept, 2], last[kept], rtol=1e-4, atol=1e-5)


def test_rotary_frequencies_stay_in_single_precision():
    _, network = build("llama")
    (frequencies,) = [m for m in network.modules() if hasattr(m, "inv_freq")]
    before = frequencies.inv_freq.clone()
    network.bfloat16()
    assert next(network.parameters()).dtype is torch.bfloat16
    assert frequencies.inv_freq.dtype is torch.float32
    assert torch.equal(frequencies.inv_freq, before)


def test_decoders_need_no_mask_where_the_kernel_is_causal():
    """Padding comes last: with none seen by any token, the fast kernels can run."""
    for implementation, plain in (("sdpa", True), ("eager", False)):
        _, network = build("llama", attn_implementation=implementation)
        layer = network.segments[1]
        value = network.segments[0](tokens())
        assert (layer._mask(value) is None) == plain


@pytest.mark.parametrize("kind", LIKE_BERT)
def test_layers_of_an_encoder_share_the_scores_of_padding(kind):
    """They are computed once, with the embeddings, and stay with their rows."""
    _, network = build(kind)
    value = network.segments[0](tokens(width=8, padding=3))
    scores = value[2]
    assert torch.equal(scores == 0, value[1])
    assert scores[~value[1]].max() < -1e29
    assert network.segments[1](value)[2] is scores


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_any_length_leave_a_batch_as_they_are_done(kind):
    """Padding and masks stay with their rows: regrouped, every text is answered as if alone."""
    _, network = build(kind)
    ids, mask = tokens(width=8, padding=3)
    with torch.inference_mode():
        every = [scores_of(logits).confidence for logits in network((ids, mask))]
    # Half way between two confidences: rounding differs with the padding, decisions must not.
    ordered = [confidence.sort().values for confidence in every]
    middles = [float((each[1] + each[2]) / 2) for each in ordered]
    runner = Runner(network, threshold_tables(np.array(middles)))
    answers = runner((ids, mask))
    assert len(answers.exit.unique()) > 1
    for row in range(len(ids)):
        kept = int(mask[row].sum())
        alone = runner((ids[row : row + 1, :kept], mask[row : row + 1, :kept]))
        torch.testing.assert_close(answers.logits[row], alone.logits[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", DECODERS)
def test_decoders_refuse_padding_before_tokens(kind):
    _, network = build(kind)
    ids, mask = tokens()
    with pytest.raises(ArgumentError, match=r'before a token.*padding_side = "right"'):
        network((ids.flip(1), mask.flip(1)))


def test_padding_that_comes_first_is_not_taken_for_tokens_that_come_last():
    hidden, mask = torch.zeros(2, 48, 4), torch.arange(48) >= torch.tensor([[40], [45]])
    assert all(a is b for a, b in zip(trim_padding((hidden, mask)), (hidden, mask), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_ramps_compute_in_the_precision_of_the_model(kind):
    model, _ = build(kind)
    family, _, pool = kind.partition("-")
    options = {"pool": pool} if pool else {}
    on = {"gpt2": exits_on_gpt2, "llama": exits_on_llama, "bert": exits_on_bert,
          "mpnet": exits_on_mpnet}  # fmt: skip
    network = on[family](model.bfloat16(), classes=CLASSES, **options).eval()
    assert {each.dtype for each in network(tokens())} == {torch.bfloat16}


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_has_no_answers(kind):
    """Layers of transformers refuse batches without rows."""
    _, network = build(kind)
    runner = Runner(network, threshold_tables(np.array([np.nan, 0.5, 0.0])))
    ids, mask = tokens()
    answers = runner((ids[:0], mask[:0]))
    assert (answers.logits.shape, answers.asked.shape) == ((0, CLASSES), (0, 3))
