//! A checked problem with its element type erased: what every kernel works from.

use crate::dropout::threshold;
use crate::erased::Source;
use crate::problem::Sizes;
use crate::real::{Real, lanes};
use crate::{Dropout, Element, Error, Isa, KeyRanges, Problem, View};
use macerator::{Simd, WithSimd};
use std::marker::PhantomData;

/// Query rows that are worked on together: they share each visit to the keys.
pub(crate) const BLOCK: usize = 64;

/// Keys of one visit.
pub(crate) const KEYS: usize = 64;

#[derive(Clone, Copy)]
pub struct Context<'a, A: Real> {
    pub(crate) sizes: Sizes,
    pub(crate) isa: Isa,
    pub(crate) query: Source<'a, A>,
    pub(crate) key: Source<'a, A>,
    pub(crate) value: Source<'a, A>,
    pub(crate) scale: f64,
    pub(crate) softcap: Option<f64>,
    pub(crate) key_ranges: Option<KeyRanges<'a>>,
    pub(crate) blocked: Option<View<'a, u8>>,
    pub(crate) bias: Option<Source<'a, A>>,
    pub(crate) alibi: Option<&'a [f32]>,
    pub(crate) sink: Option<&'a [A]>,
    pub(crate) dropout: Option<Dropping>,
}

/// Dropout with its numbers worked out.
#[derive(Clone, Copy)]
pub(crate) struct Dropping {
    pub(crate) dropout: Dropout,
    pub(crate) threshold: u32,
    /// What kept weights are multiplied by.
    pub(crate) factor: f64,
}

impl<'a, A: Real> Context<'a, A> {
    pub(crate) fn new<T: Element<Acc = A>>(problem: &Problem<'a, T>) -> Result<Self, Error> {
        let sizes = problem.check()?;
        Ok(Self {
            sizes,
            isa: problem.isa,
            query: Source::new(&problem.query),
            key: Source::new(&problem.key),
            value: Source::new(&problem.value),
            scale: problem.scale,
            softcap: problem.softcap,
            key_ranges: problem.key_ranges,
            blocked: problem.blocked.map(|view| View {
                data: view.data,
                layout: view.layout.broadcast(),
            }),
            bias: problem.bias.as_ref().map(Source::new),
            alibi: problem.alibi,
            sink: problem.sink,
            dropout: problem
                .dropout
                .filter(|dropout| dropout.probability > 0.0)
                .map(|dropout| Dropping {
                    dropout,
                    threshold: threshold(dropout.probability),
                    factor: 1.0 / (1.0 - dropout.probability),
                }),
        })
    }

    /// What queries are multiplied by: products with keys are then scores in powers of 2, so that the softmax needs
    /// no further product, or with a softcap the argument of the tanh.
    pub(crate) fn query_factor(&self) -> A {
        A::from_f64(match self.softcap {
            None => self.scale * std::f64::consts::LOG2_E,
            Some(cap) => self.scale / cap,
        })
    }

    /// What gradients at scores are multiplied by to give gradients at products.
    pub(crate) fn gradient_factor(&self) -> f64 {
        self.scale
    }

    /// What the tanh is multiplied by to give scores in powers of 2.
    pub(crate) fn cap_factor(&self) -> Option<A> {
        self.softcap
            .map(|cap| A::from_f64(cap * std::f64::consts::LOG2_E))
    }

    /// Whether a tile needs more than the products, whatever its place.
    pub(crate) fn has_extras(&self) -> bool {
        self.softcap.is_some()
            || self.blocked.is_some()
            || self.bias.is_some()
            || self.alibi.is_some()
    }

    /// Whether samples differ in what their rows see.
    pub(crate) fn has_ranges_a_sample(&self) -> bool {
        let rows = self.sizes.queries;
        self.key_ranges
            .is_some_and(|ranges| ranges.first.len() != rows || ranges.end.len() != rows)
    }

    pub(crate) fn kv_head(&self, head: usize) -> usize {
        head / self.sizes.group()
    }

    /// Vector length of the arithmetic type.
    pub(crate) fn lanes(&self) -> usize {
        self.isa.dispatch(Lanes::<A>(PhantomData))
    }

    /// Rows of the longest block of queries, as whole tiles of `width`.
    pub(crate) fn block_rows(&self, width: usize) -> usize {
        self.sizes.queries.min(BLOCK).next_multiple_of(width)
    }

    /// Keys of the longest visit.
    pub(crate) fn visit_keys(&self) -> usize {
        self.sizes.keys.min(KEYS)
    }

    pub(crate) fn blocks(&self) -> usize {
        self.sizes.queries.div_ceil(BLOCK)
    }

    /// Floating point operations of one product of a block of queries with all keys: for the hand-out of tasks.
    pub(crate) fn product_flops(&self) -> f64 {
        let rows = self.sizes.queries.min(BLOCK);
        let width = (self.sizes.d_k + self.sizes.d_v) as f64 / 2.0;
        2.0 * rows as f64 * self.sizes.keys as f64 * width
    }
}

/// Vector length of an arithmetic type.
struct Lanes<A>(PhantomData<A>);

impl<A: Real> WithSimd for Lanes<A> {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self) -> usize {
        lanes::<S, A>()
    }
}
