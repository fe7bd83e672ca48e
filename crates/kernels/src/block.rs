//! Which keys the rows of a block of queries see.

use crate::context::{BLOCK, Context};
use crate::real::Real;

/// The most tiles that a block of queries is cut into: one lane of two vectors each, at the least.
pub(crate) const MAX_TILES: usize = 32;

/// The blocks that a worker has at hand: heads follow one another, and their rows see the same keys.
#[derive(Default)]
pub(crate) struct Blocks {
    key: Option<(usize, usize)>,
    blocks: Vec<Block>,
}

impl Blocks {
    /// The blocks `first..first + count`.
    #[inline(always)]
    pub(crate) fn get<A: Real>(
        &mut self,
        ctx: &Context<'_, A>,
        batch: usize,
        first: usize,
        count: usize,
        width: usize,
    ) -> &[Block] {
        let key = Some((first, if ctx.has_ranges_a_sample() { batch } else { 0 }));
        if self.key != key {
            self.key = key;
            self.blocks.clear();
            for index in first..first + count {
                self.blocks
                    .push(Block::new(ctx, batch, index * BLOCK, width));
            }
        }
        &self.blocks
    }
}

/// A block of query rows, cut into tiles of `width` rows, one a lane.
pub(crate) struct Block {
    /// The first row.
    pub(crate) start: usize,
    /// Rows.
    pub(crate) rows: usize,
    /// Tiles.
    pub(crate) tiles: usize,
    /// Each row's first key and end.
    pub(crate) first: [u32; BLOCK],
    pub(crate) end: [u32; BLOCK],
    /// Whether a row sees keys at all. One that does not is computed as if its query were zero, and never used.
    pub(crate) live: [bool; BLOCK],
    pub(crate) all_live: bool,
    /// Keys that some row of a tile sees lie in this range.
    pub(crate) seen: [(usize, usize); MAX_TILES],
    /// Keys that all live rows of a tile see are this range.
    pub(crate) shared: [(usize, usize); MAX_TILES],
    /// Keys that some row of the block sees lie in this range.
    pub(crate) range: (usize, usize),
}

impl Block {
    #[inline(always)]
    fn new<A: Real>(ctx: &Context<'_, A>, batch: usize, start: usize, width: usize) -> Self {
        let rows = BLOCK.min(ctx.sizes.queries - start);
        let keys = ctx.sizes.keys;
        let tiles = rows.div_ceil(width);
        let mut block = Self {
            start,
            rows,
            tiles,
            first: [0; BLOCK],
            end: [0; BLOCK],
            live: [false; BLOCK],
            all_live: true,
            seen: [(0, 0); MAX_TILES],
            shared: [(0, 0); MAX_TILES],
            range: (usize::MAX, 0),
        };
        for tile in 0..tiles {
            let (mut seen, mut shared) = ((usize::MAX, 0), (0, usize::MAX));
            for row in tile * width..rows.min((tile + 1) * width) {
                let (first, end) = match &ctx.key_ranges {
                    None => (0, keys as u32),
                    Some(ranges) => ranges.get(batch, start + row, ctx.sizes.queries),
                };
                let live = first < end;
                block.live[row] = live;
                block.all_live &= live;
                if live {
                    (block.first[row], block.end[row]) = (first, end);
                    let (first, end) = (first as usize, end as usize);
                    seen = (seen.0.min(first), seen.1.max(end));
                    shared = (shared.0.max(first), shared.1.min(end));
                }
            }
            if seen.1 == 0 {
                seen = (0, 0);
            } else {
                block.range = (block.range.0.min(seen.0), block.range.1.max(seen.1));
            }
            block.seen[tile] = seen;
            block.shared[tile] = shared;
        }
        if block.range.1 == 0 {
            block.range = (0, 0);
        }
        block
    }

    /// The keys among `from..to` that a tile must visit.
    #[inline(always)]
    pub(crate) fn visit(&self, tile: usize, from: usize, to: usize) -> (usize, usize) {
        let (first, end) = self.seen[tile];
        let first = first.max(from);
        (first, end.min(to).max(first))
    }

    /// The keys `from..to` in three parts, which may be empty: those in the middle are seen by all live rows of a tile,
    /// and need no mask. If there is more to be done than to mask, all are in the first part.
    #[inline(always)]
    pub(crate) fn parts(
        &self,
        tile: usize,
        from: usize,
        to: usize,
        more: bool,
    ) -> [(usize, usize); 3] {
        let (first, end) = if more { (to, to) } else { self.shared[tile] };
        let first = first.clamp(from, to);
        let end = end.clamp(first, to);
        [(from, first), (first, end), (end, to)]
    }

    /// Whether some live row of a tile does not see one of the keys `from..to`.
    #[inline(always)]
    pub(crate) fn is_cut(&self, tile: usize, from: usize, to: usize) -> bool {
        from < self.shared[tile].0 || to > self.shared[tile].1
    }

    /// The rows `from..to` without those at both ends that see none of the keys `first..end`.
    #[inline(always)]
    pub(crate) fn seers(
        &self,
        (mut from, mut to): (usize, usize),
        (first, end): (usize, usize),
    ) -> (usize, usize) {
        let blind = |row: usize| self.first[row] as usize >= end || self.end[row] as usize <= first;
        while from < to && blind(from) {
            from += 1;
        }
        while from < to && blind(to - 1) {
            to -= 1;
        }
        (from, to)
    }
}
