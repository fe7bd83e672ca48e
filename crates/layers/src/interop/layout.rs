//! The names and shapes under which libraries keep the weights of an attention layer.

use core::fmt;

use super::{hugging_face, torch};

/// Whose names and shapes a checkpoint has.
///
/// # Example
///
/// ```
/// assert_eq!(layers::Layout::Gpt2.to_string(), "gpt2");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The modules of Burn: this crate's own, and burn-nn's `MultiHeadAttention` and
    /// `CrossAttention`.
    Burn,
    /// PyTorch's `nn.MultiheadAttention`, its projections packed or separate.
    Torch,
    /// `BertAttention` of Hugging Face's transformers, also in RoBERTa, ELECTRA and the like.
    Bert,
    /// `GPT2Attention` of Hugging Face's transformers, whose weights are `[inputs, outputs]`.
    Gpt2,
    /// `LlamaAttention` of Hugging Face's transformers, also in Mistral, Qwen2 and Qwen3,
    /// gpt-oss and the like.
    Llama,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Burn => "burn",
            Self::Torch => "torch",
            Self::Bert => "bert",
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
        })
    }
}

/// The widths of query, key and value behind their projections, all heads together.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    pub query: usize,
    pub key: usize,
    pub value: usize,
}

impl Widths {
    pub(super) fn total(self) -> usize {
        self.query + self.key + self.value
    }
}

/// How a layout keeps one layer.
pub(super) struct Plan {
    pub pieces: Vec<Piece>,
    /// Names that belong to the layer's neighbours or are no weights; one that ends in a dot stands
    /// for all names that begin with it.
    pub ignored: &'static [&'static str],
}

/// Where the values of one parameter lie.
pub(super) struct Piece {
    /// The path in the module.
    pub parameter: &'static str,
    /// The name below the prefix.
    pub tensor: &'static str,
    pub order: Order,
    /// Where the parameter's outputs begin among how many, if several parameters share the tensor.
    pub packed: Option<(usize, usize)>,
}

/// The order of the axes in the file; in the module a matrix is `[inputs, outputs]`.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// As in the module; the order of a vector too.
    InputsOutputs,
    /// As in PyTorch's linear layer.
    OutputsInputs,
    /// A vector `[outputs]` behind two axes of size 1.
    OnesOutputs,
}

impl Piece {
    pub(super) fn new(parameter: &'static str, tensor: &'static str, order: Order) -> Self {
        Self {
            parameter,
            tensor,
            order,
            packed: None,
        }
    }

    /// Query, key and value in one tensor, in this order.
    pub(super) fn packed(
        parameters: [&'static str; 3],
        tensor: &'static str,
        order: Order,
        widths: Widths,
    ) -> [Self; 3] {
        let starts = [0, widths.query, widths.query + widths.key];
        let mut starts = starts.into_iter();
        parameters.map(|parameter| Self {
            parameter,
            tensor,
            order,
            packed: starts.next().map(|start| (start, widths.total())),
        })
    }

    /// The shape of the tensor for a parameter of this shape.
    pub(super) fn file_shape(&self, parameter: &[usize]) -> Vec<usize> {
        let (inputs, outputs) = match parameter {
            [outputs] => (None, *outputs),
            [inputs, outputs] => (Some(*inputs), *outputs),
            _ => unreachable!("parameters are vectors and matrices"),
        };
        let outputs = self.packed.map_or(outputs, |(_, total)| total);
        match (self.order, inputs) {
            (Order::InputsOutputs, Some(inputs)) => vec![inputs, outputs],
            (Order::OutputsInputs, Some(inputs)) => vec![outputs, inputs],
            (Order::OnesOutputs, _) => vec![1, 1, outputs],
            (_, None) => vec![outputs],
        }
    }

    /// The bytes of a parameter of this shape, each element `size` bytes, from those of the tensor.
    pub(super) fn take(&self, bytes: &[u8], size: usize, parameter: &[usize]) -> Vec<u8> {
        let outputs = parameter[parameter.len() - 1];
        let inputs = parameter.iter().product::<usize>() / outputs;
        let (start, total) = self.packed.unwrap_or((0, outputs));
        let mut taken = Vec::with_capacity(inputs * outputs * size);
        for input in 0..inputs {
            if let Order::OutputsInputs = self.order {
                for output in start..start + outputs {
                    let at = (output * inputs + input) * size;
                    taken.extend_from_slice(&bytes[at..at + size]);
                }
            } else {
                let at = (input * total + start) * size;
                taken.extend_from_slice(&bytes[at..at + outputs * size]);
            }
        }
        taken
    }
}

impl Layout {
    /// `has` tells whether the file has a name below the prefix.
    pub(super) fn plan(self, widths: Widths, has: impl Fn(&str) -> bool) -> Plan {
        match self {
            Self::Burn => burn(),
            Self::Torch if has("q_proj_weight") => torch::separate(widths),
            Self::Torch => torch::packed(widths),
            Self::Bert => hugging_face::bert(),
            Self::Gpt2 => hugging_face::gpt2(widths),
            Self::Llama => hugging_face::llama(),
        }
    }
}

/// Every parameter that the module can have, under its own path.
fn burn() -> Plan {
    let parameters = [
        "query.weight",
        "query.bias",
        "key.weight",
        "key.bias",
        "value.weight",
        "value.bias",
        "output.weight",
        "output.bias",
        "bias_key",
        "bias_value",
        "qk_norm.query.gamma",
        "qk_norm.key.gamma",
        "attention.sink",
        "attention.learned_scale",
    ];
    Plan {
        pieces: parameters
            .map(|name| Piece::new(name, name, Order::InputsOutputs))
            .into(),
        ignored: &[],
    }
}
