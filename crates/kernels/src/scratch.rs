//! Working memory, taken once a worker.

use crate::real::Real;

/// Zeroed memory whose pieces start at cache lines.
pub(crate) struct Scratch<A> {
    data: Vec<A>,
}

/// Elements that fill whole cache lines, of 64 bytes.
const fn lines<A>(len: usize) -> usize {
    len.next_multiple_of(64 / size_of::<A>())
}

impl<A: Real> Scratch<A> {
    /// Room for pieces of these lengths.
    pub(crate) fn new(lens: &[usize]) -> Self {
        let len: usize = lens.iter().map(|&len| lines::<A>(len)).sum();
        Self {
            data: vec![A::ZERO; len + 64 / size_of::<A>()],
        }
    }

    /// The pieces, in order.
    pub(crate) fn pieces<const N: usize>(&mut self, lens: [usize; N]) -> [&mut [A]; N] {
        let skip = self.data.as_ptr().align_offset(64).min(64 / size_of::<A>());
        let mut rest = &mut self.data[skip..];
        lens.map(|len| {
            let (piece, tail) = std::mem::take(&mut rest).split_at_mut(lines::<A>(len));
            rest = tail;
            &mut piece[..len]
        })
    }
}
