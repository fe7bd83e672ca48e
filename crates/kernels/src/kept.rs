//! Weights that the forward pass leaves for the backward pass, where they are few.

use crate::context::{BLOCK, Context, KEYS};
use crate::erased::Shared;
use crate::micro::NV;
use crate::real::Real;
use crate::{Error, Isa, decode, problem};
use std::mem::MaybeUninit;

/// Weights of rows with few keys, from [`forward_keeping`](crate::forward_keeping) for
/// [`backward`](crate::backward), which computes them again where they are not kept.
///
/// They are kept if there are at most 64 keys, more than 4 queries and no softcap: a seventh of the work of both passes
/// for a number a key and one more. Queries of a head count in whole tiles, of 16 in `f32` with AVX2 and of 32 at most.
/// Made once, the memory serves further calls.
///
/// # Example
///
/// ```
/// use kernels::{Gradients, KeptWeights, Problem, Saved, View, ViewMut};
///
/// let shape = [1, 1, 5, 1];
/// let (x, grad_out) = ([0.5_f32, 1.0, -1.0, 2.0, 0.0], [1.0; 5]);
/// let view = View::contiguous(&x, shape)?;
/// let problem = Problem::new(view, view, view);
/// let (mut out, mut lse, mut kept) = ([0.0; 5], [0.0; 5], KeptWeights::default());
/// kernels::forward_keeping(&problem, ViewMut::contiguous(&mut out, shape)?, &mut lse, &mut kept)?;
/// let mut dv = [0.0; 5];
/// kernels::backward(
///     &problem,
///     &Saved {
///         out: View::contiguous(&out, shape)?,
///         lse: &lse,
///         kept: Some(&kept),
///         grad_out: View::contiguous(&grad_out, shape)?,
///         grad_lse: None,
///     },
///     Gradients { value: Some(ViewMut::contiguous(&mut dv, shape)?), ..Gradients::default() },
/// )?;
/// // Each row's weights sum to 1.
/// assert!((dv.iter().sum::<f32>() - 5.0).abs() < 1e-5);
/// # Ok::<(), kernels::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct KeptWeights<A> {
    /// Tile after tile.
    data: Vec<MaybeUninit<A>>,
    /// Whose they are, if anybody's: all tiles of that problem have been written.
    owner: Option<Owner>,
}

/// What the layout depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Owner {
    /// `[batch, heads, query_len, key_len]`
    shape: [usize; 4],
    isa: Isa,
}

impl Owner {
    fn of<A: Real>(ctx: &Context<'_, A>) -> Self {
        let sizes = &ctx.sizes;
        Self {
            shape: [sizes.batch, sizes.heads, sizes.queries, sizes.keys],
            isa: ctx.isa,
        }
    }
}

/// Whether the weights of a problem are kept.
fn suits<A: Real>(ctx: &Context<'_, A>) -> bool {
    // Keys of one visit, so that the sum of a row is known with its weights. The gradient through a softcap needs more
    // than the weights.
    ctx.sizes.keys <= KEYS && ctx.softcap.is_none() && !decode::suits(ctx)
}

impl<A: Real> KeptWeights<A> {
    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.owner.is_none()
    }

    /// Room for a problem's weights, if they are to be kept.
    pub(crate) fn start(&mut self, ctx: &Context<'_, A>) -> Option<KeptTiles<'_, A>> {
        self.owner = None;
        if !suits(ctx) {
            return None;
        }
        let layout = Layout::new(ctx, NV * ctx.lanes());
        let len = layout.len(ctx);
        if self.data.capacity() < len {
            self.data = Vec::with_capacity(len);
        }
        // SAFETY: there is room, and no element need be written to be `MaybeUninit`.
        unsafe { self.data.set_len(len) };
        Some(KeptTiles {
            layout,
            data: Shared::unwritten(&mut self.data),
        })
    }

    /// Makes what was written a problem's weights.
    ///
    /// # Safety
    ///
    /// All tiles must have been taken since [`start`](Self::start), if there were any.
    pub(crate) unsafe fn finish(&mut self, ctx: &Context<'_, A>) {
        self.owner = suits(ctx).then(|| Owner::of(ctx));
    }

    /// An error if weights are kept and a problem's would have another shape.
    pub(crate) fn check(&self, ctx: &Context<'_, A>) -> Result<(), Error> {
        match self.owner {
            Some(owner) => problem::check_axes(
                "kept",
                ["batch", "heads", "query_len", "key_len"],
                owner.shape,
                Owner::of(ctx).shape,
            ),
            None => Ok(()),
        }
    }

    /// A block's tiles, unless nothing is kept or for other vector instructions.
    #[inline(always)]
    pub(crate) fn block(
        &self,
        ctx: &Context<'_, A>,
        width: usize,
        at: (usize, usize),
        block: usize,
        tiles: usize,
    ) -> Option<&[A]> {
        if self.owner != Some(Owner::of(ctx)) || !suits(ctx) {
            return None;
        }
        let (start, len) = Layout::new(ctx, width).block(ctx, at, block, tiles);
        let tiles = &self.data[start..start + len];
        // SAFETY: the forward pass of the owner has written all tiles, and the layout is the owner's.
        Some(unsafe { tiles.assume_init_ref() })
    }
}

/// Numbers of a tile: a row of lanes a key, and one of what these are to be multiplied by.
pub(crate) fn tile_len(keys: usize, width: usize) -> usize {
    (keys + 1) * width
}

/// How tiles lie: those of a head one after another.
#[derive(Clone, Copy)]
struct Layout {
    tile: usize,
    /// Tiles of a block, all but the last of a head.
    block: usize,
    /// Tiles of a head.
    head: usize,
}

impl Layout {
    #[inline(always)]
    fn new<A: Real>(ctx: &Context<'_, A>, width: usize) -> Self {
        Self {
            tile: tile_len(ctx.sizes.keys, width),
            block: BLOCK / width,
            head: ctx.sizes.queries.div_ceil(width),
        }
    }

    fn len<A: Real>(&self, ctx: &Context<'_, A>) -> usize {
        ctx.sizes.batch * ctx.sizes.heads * self.head * self.tile
    }

    /// Start and length of a block.
    #[inline(always)]
    fn block<A: Real>(
        &self,
        ctx: &Context<'_, A>,
        (batch, head): (usize, usize),
        block: usize,
        tiles: usize,
    ) -> (usize, usize) {
        let head = batch * ctx.sizes.heads + head;
        let first = head * self.head + block * self.block;
        (first * self.tile, tiles * self.tile)
    }
}

/// Tiles to be written.
#[derive(Clone, Copy)]
pub struct KeptTiles<'a, A> {
    layout: Layout,
    data: Shared<'a, A>,
}

impl<'a, A: Real> KeptTiles<'a, A> {
    /// A block's tiles, all zero.
    ///
    /// # Safety
    ///
    /// Nobody else may ask for the same block.
    #[inline(always)]
    pub(crate) unsafe fn block(
        &self,
        ctx: &Context<'_, A>,
        at: (usize, usize),
        block: usize,
        tiles: usize,
    ) -> &'a mut [A] {
        let (start, len) = self.layout.block(ctx, at, block, tiles);
        // SAFETY: the block is the caller's alone, and written from here on.
        unsafe {
            self.data.clear(start, len);
            self.data.part(start, len)
        }
    }
}
