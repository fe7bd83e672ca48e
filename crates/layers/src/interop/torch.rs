//! PyTorch's `nn.MultiheadAttention`.

use super::layout::{Order, Piece, Plan, Widths};

/// The form in which query, key and value inputs are equally wide.
pub(super) fn packed(widths: Widths) -> Plan {
    let weights = ["query.weight", "key.weight", "value.weight"];
    plan(
        Piece::packed(weights, "in_proj_weight", Order::OutputsInputs, widths),
        widths,
    )
}

/// The form with `kdim` or `vdim`. The biases stay packed.
pub(super) fn separate(widths: Widths) -> Plan {
    let order = Order::OutputsInputs;
    let pieces = [
        Piece::new("query.weight", "q_proj_weight", order),
        Piece::new("key.weight", "k_proj_weight", order),
        Piece::new("value.weight", "v_proj_weight", order),
    ];
    plan(pieces, widths)
}

fn plan(weights: [Piece; 3], widths: Widths) -> Plan {
    let order = Order::InputsOutputs;
    let biases = ["query.bias", "key.bias", "value.bias"];
    let mut pieces = Vec::from(weights);
    pieces.extend(Piece::packed(biases, "in_proj_bias", order, widths));
    pieces.extend([
        Piece::new("output.weight", "out_proj.weight", Order::OutputsInputs),
        Piece::new("output.bias", "out_proj.bias", order),
        Piece::new("bias_key", "bias_k", Order::OnesOutputs),
        Piece::new("bias_value", "bias_v", Order::OnesOutputs),
    ]);
    Plan {
        pieces,
        ignored: &[],
    }
}
