//! The attention layers of Hugging Face's transformers.

use super::layout::{Order, Piece, Plan, Widths};

pub(super) fn bert() -> Plan {
    let mut pieces = Vec::new();
    pieces.extend(linear(
        ["query.weight", "query.bias"],
        ["self.query.weight", "self.query.bias"],
    ));
    pieces.extend(linear(
        ["key.weight", "key.bias"],
        ["self.key.weight", "self.key.bias"],
    ));
    pieces.extend(linear(
        ["value.weight", "value.bias"],
        ["self.value.weight", "self.value.bias"],
    ));
    pieces.extend(linear(
        ["output.weight", "output.bias"],
        ["output.dense.weight", "output.dense.bias"],
    ));
    Plan {
        pieces,
        // The norm of the residual around the layer.
        ignored: &["output.LayerNorm."],
    }
}

pub(super) fn gpt2(widths: Widths) -> Plan {
    let order = Order::InputsOutputs;
    let weights = ["query.weight", "key.weight", "value.weight"];
    let biases = ["query.bias", "key.bias", "value.bias"];
    let mut pieces = Vec::from(Piece::packed(weights, "c_attn.weight", order, widths));
    pieces.extend(Piece::packed(biases, "c_attn.bias", order, widths));
    pieces.extend([
        Piece::new("output.weight", "c_proj.weight", order),
        Piece::new("output.bias", "c_proj.bias", order),
    ]);
    Plan {
        pieces,
        // The causal mask, and what older versions wrote over blocked scores.
        ignored: &["bias", "masked_bias"],
    }
}

pub(super) fn llama() -> Plan {
    let mut pieces = Vec::new();
    pieces.extend(linear(
        ["query.weight", "query.bias"],
        ["q_proj.weight", "q_proj.bias"],
    ));
    pieces.extend(linear(
        ["key.weight", "key.bias"],
        ["k_proj.weight", "k_proj.bias"],
    ));
    pieces.extend(linear(
        ["value.weight", "value.bias"],
        ["v_proj.weight", "v_proj.bias"],
    ));
    pieces.extend(linear(
        ["output.weight", "output.bias"],
        ["o_proj.weight", "o_proj.bias"],
    ));
    let order = Order::InputsOutputs;
    pieces.extend([
        Piece::new("qk_norm.query.gamma", "q_norm.weight", order),
        Piece::new("qk_norm.key.gamma", "k_norm.weight", order),
        Piece::new("attention.sink", "sinks", order),
    ]);
    Plan {
        pieces,
        // The frequencies, which the module's own rotary embedding computes.
        ignored: &["rotary_emb.inv_freq"],
    }
}

fn linear(parameters: [&'static str; 2], [weight, bias]: [&'static str; 2]) -> [Piece; 2] {
    [
        Piece::new(parameters[0], weight, Order::OutputsInputs),
        Piece::new(parameters[1], bias, Order::InputsOutputs),
    ]
}
