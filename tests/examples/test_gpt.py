"""The GPT of examples/gpt.py: it learns, and its cache of keys changes no token."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import arrayfn as af
from arrayfn import random

PATH = Path(__file__).parents[2] / "examples" / "gpt.py"


@pytest.fixture(scope="module")
def gpt():
    spec = importlib.util.spec_from_file_location("gpt", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpt"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpt"]


def test_text_goes_into_tokens_and_back(gpt):
    text = "def f(x):\n    return x ** 2\n"
    tokens = gpt.encode(text + "\tü")
    assert tokens.dtype == np.uint8
    assert gpt.decode(tokens) == text
    assert len(gpt.read_text()) > 500_000


def test_it_learns(gpt):
    config = gpt.Config(layers=1, width=32, heads=2, kv_heads=1, context=32)
    text = gpt.encode(gpt.read_text())
    losses = [loss for _, loss, _ in gpt.train(config, text, 60, 8)]
    assert np.log(len(gpt.ALPHABET)) - 0.3 < losses[0] < 5.5
    assert np.mean(losses[-5:]) < 3.05


def test_losses_do_not_depend_on_the_number_of_devices(gpt):
    config = gpt.Config(layers=1, width=32, heads=2, kv_heads=1, context=32)
    text = gpt.encode(gpt.read_text())
    one, two, four = (
        [float(loss) for _, loss, _ in gpt.train(config, text, 6, 8, devices=n)]
        for n in (1, 2, 4)
    )
    np.testing.assert_allclose(two, one, rtol=1e-6)
    np.testing.assert_allclose(four, one, rtol=1e-6)


@pytest.mark.parametrize("rope", [True, False])
def test_the_cache_changes_no_token(gpt, rope):
    config = gpt.Config(layers=2, width=16, heads=4, kv_heads=2, context=12, rope=rope)
    params = gpt.init_params(random.key(4), config)
    # Larger embeddings, for logits that differ.
    params["embed"] = params["embed"] * 20
    prompt = gpt.encode("def ")
    cold = np.float32(1e-4)
    tokens = gpt.sample(params, prompt, random.key(0), cold, config=config, length=12)
    np.testing.assert_array_equal(tokens[:4], prompt)
    forward = af.jit(lambda params, tokens: gpt.forward(params, tokens, config))
    logits = forward(params, tokens[None].astype(np.int32))
    np.testing.assert_array_equal(tokens[4:], logits[0, 3:-1].argmax(-1))
