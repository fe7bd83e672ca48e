"""Writes the checkpoints beside this file: small attention layers of PyTorch and of Hugging Face's
transformers with random weights, an input and the output that those libraries compute for it.

    pip install torch transformers safetensors
    python generate.py

Written with PyTorch 2.15.0 and transformers 5.24.0. All sizes of a layer differ where the library
lets them, so that no two axes can be mixed up unseen.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import BertConfig, GPT2Config, GptOssConfig, LlamaConfig, Qwen3Config
from transformers.models.bert.modeling_bert import BertAttention
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

HERE = Path(__file__).parent
BATCH, LENGTH = 2, 5


def randomise(module):
    """Biases and gains start at 0 and 1, where an error would not show."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.6)
    return module.eval()


def blocked_future():
    """0 where a query may look, the smallest number where it may not."""
    mask = torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min)
    return torch.triu(mask, 1)[None, None]


def under(prefix, module):
    return {prefix + name: value.clone() for name, value in module.state_dict().items()}


def torch_packed():
    module = randomise(torch.nn.MultiheadAttention(6, 2, add_bias_kv=True, batch_first=True))
    x = torch.randn(BATCH, LENGTH, 6)
    output, _ = module(x, x, x)
    # Nested, as training scripts save it.
    checkpoint = {"epoch": 3, "model": under("layer.attention.", module)}
    torch.save({**checkpoint, "input": x, "output": output.detach()}, HERE / "torch_packed.pt")


def torch_separate():
    module = torch.nn.MultiheadAttention(6, 2, bias=False, kdim=7, vdim=5, batch_first=True)
    randomise(module)
    query, key, value = (torch.randn(BATCH, n, d) for n, d in [(3, 6), (5, 7), (5, 5)])
    output, _ = module(query, key, value)
    tensors = {"query": query, "key": key, "value": value, "output": output.detach()}
    torch.save({"state_dict": module.state_dict(), "case": tensors}, HERE / "torch_separate.pt")


def bert():
    config = BertConfig(hidden_size=6, num_attention_heads=2, attn_implementation="eager")
    module = randomise(BertAttention(config))
    x = torch.randn(BATCH, LENGTH, 6)
    # Without the residual and its norm, which are no part of the attention.
    output = module.output.dense(module.self(x)[0])
    tensors = under("bert.encoder.layer.1.attention.", module)
    save(tensors, x, output, "bert")


def gpt2():
    config = GPT2Config(n_embd=6, n_head=2, attn_implementation="eager")
    module = randomise(GPT2Attention(config, layer_idx=0))
    x = torch.randn(BATCH, LENGTH, 6)
    output = module(x, attention_mask=blocked_future())[0]
    tensors = under("transformer.h.0.attn.", module)
    # Checkpoints of older versions keep the causal mask as a buffer.
    tensors["transformer.h.0.attn.bias"] = torch.tril(torch.ones(1, 1, 8, 8))
    tensors["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save(tensors, x, output, "gpt2")


def rotated(name, config_class, attention_class, rotary_class, **options):
    config = config_class(
        hidden_size=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-6,
        attn_implementation="eager",
        **options,
    )
    module = randomise(attention_class(config, layer_idx=0))
    x = torch.randn(BATCH, LENGTH, 12)
    positions = torch.arange(LENGTH)[None]
    turned = rotary_class(config)(x, positions)
    output = module(x, position_embeddings=turned, attention_mask=blocked_future())[0]
    save(under("model.layers.0.self_attn.", module), x, output, name)


def save(tensors, x, output, name):
    tensors = {**tensors, "input": x, "output": output.detach()}
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    save_file(tensors, HERE / f"{name}.safetensors")


torch.manual_seed(20)
with torch.no_grad():
    torch_packed()
    torch_separate()
    bert()
    gpt2()
    rotated("llama", LlamaConfig, LlamaAttention, LlamaRotaryEmbedding)
    rotated("qwen3", Qwen3Config, Qwen3Attention, Qwen3RotaryEmbedding)
    rotated(
        "gpt_oss",
        GptOssConfig,
        GptOssAttention,
        GptOssRotaryEmbedding,
        layer_types=["full_attention"],
        num_hidden_layers=1,
        attention_bias=True,
    )
