//! The hand-written backward, registered once for every backend below `Autodiff`.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, TensorMetadata};

use super::{
    AttentionBackend, AttentionGradients, AttentionOptions, Kept, MaybeBool, MaybeFloat, Modifiers,
    Wanted, statistics,
};

/// What both backward steps need. The inputs stay with the graph, which may recompute them.
#[derive(Clone, Debug)]
struct State<B: AttentionBackend> {
    query: NodeId,
    key: NodeId,
    value: NodeId,
    bias: Option<NodeId>,
    sink: Option<NodeId>,
    mask: MaybeBool<B>,
    context: FloatTensor<B>,
    logsumexp: FloatTensor<B>,
    options: AttentionOptions,
}

/// The step from the gradient at the context.
#[derive(Debug)]
struct FromContext;

/// The step from the gradient at the logsumexp. A step has one output, so this is a node of its
/// own: gradients add up, and a logsumexp that no loss uses costs nothing.
#[derive(Debug)]
struct FromLogsumexp;

/// Query, key, value, bias, sink. An absent one is represented by the query once more.
const PARENTS: usize = 5;

impl<B: AttentionBackend> Backward<B, PARENTS> for FromContext {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<Self::State, PARENTS>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        ops.state
            .clone()
            .backward(ops, gradient, MaybeFloat::None, gradients, checkpointer);
    }
}

impl<B: AttentionBackend> Backward<B, PARENTS> for FromLogsumexp {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<Self::State, PARENTS>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = MaybeFloat::Some(gradients.consume::<B>(&ops.node));
        let context = &ops.state.context;
        let nothing = B::float_zeros(context.shape(), &context.device(), context.dtype().into());
        let mut state = ops.state.clone();
        // The probe asks for the gradient of the loss through the context.
        state.options.probe = None;
        state.backward(ops, nothing, gradient, gradients, checkpointer);
    }
}

impl<B: AttentionBackend> State<B> {
    fn backward(
        self,
        ops: Ops<Self, PARENTS>,
        context_gradient: FloatTensor<B>,
        logsumexp_gradient: MaybeFloat<B>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let [query_node, key_node, value_node, bias_node, sink_node] = ops.parents;
        let bias_node = self.bias.and(bias_node);
        let sink_node = self.sink.and(sink_node);
        let mut retrieve = |id: NodeId| checkpointer.retrieve_node_output::<FloatTensor<B>>(id);
        let (query, key, value) = (
            retrieve(self.query),
            retrieve(self.key),
            retrieve(self.value),
        );
        let modifiers = Modifiers {
            mask: self.mask,
            bias: MaybeFloat::from_option(self.bias.map(&mut retrieve)),
            sink: MaybeFloat::from_option(self.sink.map(&mut retrieve)),
        };
        if let Some(probe) = &self.options.probe {
            let rows = statistics::rows::<B>(
                query.clone(),
                key.clone(),
                value.clone(),
                modifiers.clone(),
                &self.options,
                self.logsumexp.clone(),
                Some((self.context.clone(), context_gradient.clone())),
            );
            probe.record::<B>(rows);
        }
        let wanted = Wanted {
            query: query_node.is_some(),
            key: key_node.is_some(),
            value: value_node.is_some(),
            bias: bias_node.is_some(),
            sink: sink_node.is_some(),
        };
        let AttentionGradients {
            query,
            key,
            value,
            bias,
            sink,
        } = B::attention_backward(
            query,
            key,
            value,
            self.context,
            self.logsumexp,
            context_gradient,
            logsumexp_gradient,
            modifiers,
            self.options,
            wanted,
        );
        for (node, gradient) in [
            (query_node, query),
            (key_node, key),
            (value_node, value),
            (bias_node, bias),
            (sink_node, sink),
        ] {
            if let (Some(node), Some(gradient)) = (node, gradient.into_option()) {
                gradients.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: AttentionBackend, C: CheckpointStrategy> AttentionBackend for Autodiff<B, C> {
    fn attention_forward(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        modifiers: Modifiers<Self>,
        mut options: AttentionOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let mask = MaybeBool::<B>::from_option(modifiers.mask.into_option());
        let bias = modifiers.bias.into_option();
        let sink = modifiers.sink.into_option();
        let nodes = || {
            let or_query = |tensor: &Option<FloatTensor<Self>>| match tensor {
                Some(tensor) => tensor.node(),
                None => query.node(),
            };
            [
                query.node(),
                key.node(),
                value.node(),
                or_query(&bias),
                or_query(&sink),
            ]
        };
        let prepared = FromContext.prepare::<C>(nodes()).compute_bound().stateful();
        options.kept = matches!(prepared, OpsKind::Tracked(_)).then(Kept::default);
        let inner = |tensor: &Option<FloatTensor<Self>>| {
            MaybeFloat::from_option(tensor.as_ref().map(|tensor| tensor.primitive().clone()))
        };
        let plain = Modifiers {
            mask: mask.clone(),
            bias: inner(&bias),
            sink: inner(&sink),
        };
        let (context, logsumexp) = B::attention_forward(
            query.primitive().clone(),
            key.primitive().clone(),
            value.primitive().clone(),
            plain.clone(),
            options.clone(),
        );
        // The ids come from the preparation that is asked to keep the inputs.
        macro_rules! state {
            ($preparation:expr) => {
                State::<B> {
                    query: $preparation.checkpoint(&query),
                    key: $preparation.checkpoint(&key),
                    value: $preparation.checkpoint(&value),
                    bias: bias.as_ref().map(|bias| $preparation.checkpoint(bias)),
                    sink: sink.as_ref().map(|sink| $preparation.checkpoint(sink)),
                    mask: mask.clone(),
                    context: context.clone(),
                    logsumexp: logsumexp.clone(),
                    options: options.clone(),
                }
            };
        }
        let tracked_logsumexp = match options.lse_gradient {
            false => <Self as AutodiffBackend>::from_inner(logsumexp.clone()),
            true => match FromLogsumexp
                .prepare::<C>(nodes())
                .compute_bound()
                .stateful()
            {
                OpsKind::Tracked(mut preparation) => {
                    let state = state!(preparation);
                    preparation.finish(state, logsumexp.clone())
                }
                OpsKind::UnTracked(preparation) => preparation.finish(logsumexp.clone()),
            },
        };
        let tracked_context = match prepared {
            OpsKind::Tracked(mut preparation) => {
                let state = state!(preparation);
                preparation.finish(state, context)
            }
            OpsKind::UnTracked(preparation) => {
                if let Some(probe) = &options.probe {
                    let rows = statistics::rows::<B>(
                        query.primitive().clone(),
                        key.primitive().clone(),
                        value.primitive().clone(),
                        plain,
                        &options,
                        logsumexp,
                        None,
                    );
                    probe.record::<B>(rows);
                }
                preparation.finish(context)
            }
        };
        (tracked_context, tracked_logsumexp)
    }

    fn attention_backward(
        _query: FloatTensor<Self>,
        _key: FloatTensor<Self>,
        _value: FloatTensor<Self>,
        _context: FloatTensor<Self>,
        _logsumexp: FloatTensor<Self>,
        _context_gradient: FloatTensor<Self>,
        _logsumexp_gradient: MaybeFloat<Self>,
        _modifiers: Modifiers<Self>,
        _options: AttentionOptions,
        _wanted: Wanted,
    ) -> AttentionGradients<Self> {
        panic!("attention: gradients of gradients are not supported (Burn differentiates once)")
    }
}
