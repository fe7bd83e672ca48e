//! From the modules of burn-nn.

use core::any::Any;
use std::collections::HashMap;

use burn::module::{Content, Flag, Module, ModuleDisplayDefault, ModuleVisitor, Param};
use burn::nn::Linear;
use burn::nn::attention::{CrossAttention, MultiHeadAttention as BurnMultiHeadAttention};
use burn::tensor::Tensor;

use crate::multi_head::{MultiHeadAttention, MultiHeadAttentionConfig};

/// Takes over the projections without a copy, and the dropout and quiet softmax with them.
///
/// Outputs are equal wherever a query sees a key. burn-nn's masks write `min_float` over a blocked
/// score and so leave it a little weight; that number has no counterpart here, where a blocked key
/// has weight 0 and a query without a key gives 0.
///
/// # Panics
///
/// If `n_heads` times `d_k` is not `d_model`, a module whose own forward panics too.
///
/// # Example
///
/// ```
/// use burn::nn::attention::MultiHeadAttentionConfig;
/// use layers::MultiHeadAttention;
///
/// let theirs = MultiHeadAttentionConfig::new(16, 4).init(&Default::default());
/// let ours = MultiHeadAttention::from(theirs);
/// assert_eq!((ours.d_model, ours.n_heads, ours.d_head), (16, 4, 4));
/// assert_eq!(ours.attention.dropout.prob, 0.1);
/// ```
impl From<BurnMultiHeadAttention> for MultiHeadAttention {
    fn from(module: BurnMultiHeadAttention) -> Self {
        assert_eq!(
            module.n_heads * module.d_k,
            module.d_model,
            "d_model {} is not n_heads {} times d_k {}",
            module.d_model,
            module.n_heads,
            module.d_k
        );
        // Parameters are lazy: those of the module built here are never drawn.
        let config = MultiHeadAttentionConfig::new(module.d_model, module.n_heads)
            .with_quiet_softmax(module.quiet_softmax);
        let mut attention = config.init(&module.query.weight.lazy_device());
        attention.query = module.query;
        attention.key = module.key;
        attention.value = module.value;
        attention.output = module.output;
        attention.attention.dropout = module.dropout;
        attention
    }
}

/// Takes over the projections without a copy, the heads of query and key, and the dropout and
/// quiet softmax with them. A forward then takes
/// [`MhaInput::cross_attn`](crate::MhaInput::cross_attn).
///
/// `min_float` has no counterpart, as for burn-nn's `MultiHeadAttention`.
///
/// # Panics
///
/// If burn-nn stops showing the module's sizes, which are private otherwise; the version that this
/// crate is built with shows them.
///
/// # Example
///
/// ```
/// use burn::nn::attention::CrossAttentionConfig;
/// use layers::MultiHeadAttention;
///
/// // d_model, d_context, n_heads, n_heads_kv, d_head
/// let theirs = CrossAttentionConfig::new(16, 24, 4, 2, 8).init(&Default::default());
/// let ours = MultiHeadAttention::from(theirs);
/// assert_eq!((ours.n_heads, ours.n_kv_heads, ours.d_head), (4, 2, 8));
/// assert_eq!(ours.key.weight.dims(), [24, 2 * 8]);
/// ```
impl From<CrossAttention> for MultiHeadAttention {
    fn from(module: CrossAttention) -> Self {
        let shown = Shown::of(&module);
        let mut found = Found::default();
        module.visit(&mut found);
        let [query, key, value, output] =
            ["query", "key", "value", "output"].map(|name| found.linear(name));

        let [d_model, _] = query.weight.lazy_shape().dims();
        let [d_context, _] = key.weight.lazy_shape().dims();
        let config = MultiHeadAttentionConfig::new(d_model, shown.number("n_heads"))
            .with_n_kv_heads(Some(shown.number("n_heads_kv")))
            .with_d_head(Some(shown.number("d_head")))
            .with_d_key(Some(d_context))
            .with_d_value(Some(d_context))
            .with_dropout(shown.number("prob"))
            .with_quiet_softmax(shown.number("quiet_softmax"));
        let mut attention = config.init(&query.weight.lazy_device());
        attention.query = query;
        attention.key = key;
        attention.value = value;
        attention.output = output;
        if let Some(training) = found.training {
            attention.attention.dropout.training = training;
        }
        attention
    }
}

/// What the display of a module says: the one way to its private sizes.
struct Shown(Content);

impl Shown {
    fn of(module: &CrossAttention) -> Self {
        let content = module.content(Content::new(Default::default()));
        Self(content.expect("burn-nn shows the fields of CrossAttention"))
    }

    /// The value behind a name, of the module or (`prob`) of its dropout.
    fn number<T: core::str::FromStr>(&self, name: &str) -> T {
        let attributes = &self.0.attributes;
        let text = match attributes.iter().find(|attribute| attribute.name == name) {
            Some(attribute) => Some(attribute.value.as_str()),
            None => attributes.iter().find_map(|attribute| {
                let (_, value) = attribute.value.split_once(&format!("{name}: "))?;
                value.split([',', '}', '\n']).next()
            }),
        };
        text.and_then(|text| text.trim().parse().ok())
            .unwrap_or_else(|| panic!("burn-nn does not show {name} of CrossAttention"))
    }
}

/// The parameters of a module by path, shared with it.
#[derive(Default)]
struct Found {
    path: Vec<String>,
    matrices: HashMap<String, Param<Tensor<2>>>,
    vectors: HashMap<String, Param<Tensor<1>>>,
    training: Option<Param<Flag>>,
}

impl Found {
    fn linear(&mut self, name: &str) -> Linear {
        let weight = self.matrices.remove(&format!("{name}.weight"));
        Linear {
            weight: weight
                .unwrap_or_else(|| panic!("CrossAttention of burn-nn has no {name}.weight")),
            bias: self.vectors.remove(&format!("{name}.bias")),
        }
    }
}

impl ModuleVisitor for Found {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let param: &dyn Any = param;
        let path = self.path.join(".");
        if let Some(matrix) = param.downcast_ref::<Param<Tensor<2>>>() {
            self.matrices.insert(path, matrix.clone());
        } else if let Some(vector) = param.downcast_ref::<Param<Tensor<1>>>() {
            self.vectors.insert(path, vector.clone());
        }
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.training = Some(flag.clone());
    }
}
