//! Strided views of rank 4 over plain slices.

use crate::Error;
use std::mem::MaybeUninit;

/// A tensor of rank 4 that reads a slice by strides.
///
/// Element `[a, b, c, d]` is `data[offset + a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]]`.
/// A stride of 0 broadcasts its axis, a negative one runs backwards.
///
/// # Example
///
/// Memory laid out `[batch, length, heads, dim]`, as a projection leaves it, viewed heads first:
///
/// ```
/// let data: Vec<f32> = (0..12).map(|x| x as f32).collect(); // [1, 3, 2, 2]
/// let view = kernels::View::new(&data, [1, 2, 3, 2], [12, 2, 4, 1], 0)?;
/// assert_eq!(view.get([0, 1, 0, 1]), 3.0);
/// assert_eq!(view.get([0, 0, 2, 0]), 8.0);
/// # Ok::<(), kernels::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct View<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) layout: Layout,
}

/// A tensor of rank 4 that writes a slice by strides; no element is reached twice.
///
/// # Example
///
/// ```
/// let mut data = [0.0_f32; 12];
/// assert!(kernels::ViewMut::new(&mut data, [1, 2, 3, 2], [12, 2, 4, 1], 0).is_ok());
/// assert!(kernels::ViewMut::new(&mut data, [1, 2, 3, 2], [12, 0, 4, 1], 0).is_err());
/// ```
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    /// Never made unwritten again where it was written.
    pub(crate) data: &'a mut [MaybeUninit<T>],
    pub(crate) layout: Layout,
}

/// Where a view's elements lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shape: [usize; 4],
    pub(crate) strides: [isize; 4],
    pub(crate) offset: usize,
}

impl<'a, T> View<'a, T> {
    /// A view by strides in elements.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if an element lies outside of `data`.
    pub fn new(
        data: &'a [T],
        shape: [usize; 4],
        strides: [isize; 4],
        offset: usize,
    ) -> Result<Self, Error> {
        let layout = Layout::new(data.len(), shape, strides, offset)?;
        Ok(Self { data, layout })
    }

    /// A view of elements that lie one after another, the last axis fastest.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if `data` is shorter than the product of `shape`.
    pub fn contiguous(data: &'a [T], shape: [usize; 4]) -> Result<Self, Error> {
        Self::new(data, shape, contiguous_strides(shape), 0)
    }

    /// The sizes of the four axes.
    pub fn shape(&self) -> [usize; 4] {
        self.layout.shape
    }

    /// The strides of the four axes, in elements.
    pub fn strides(&self) -> [isize; 4] {
        self.layout.strides
    }

    /// The rows of all batches of `[batch, 1, rows, columns]` as one matrix, if they lie evenly.
    pub(crate) fn joined(&self) -> Option<Self> {
        let [batch, _, rows, columns] = self.layout.shape;
        let [sample, _, row, element] = self.layout.strides;
        let pitch = match rows {
            0 | 1 => sample,
            _ if batch == 1 || sample == row.saturating_mul(rows as isize) => row,
            _ => return None,
        };
        let layout = Layout {
            shape: [1, 1, batch.saturating_mul(rows), columns],
            strides: [0, 0, pitch, element],
            offset: self.layout.offset,
        };
        Some(Self { layout, ..*self })
    }
}

impl<T: Copy> View<'_, T> {
    /// The element at `index`.
    ///
    /// # Panics
    ///
    /// If the index lies outside of the shape.
    pub fn get(&self, index: [usize; 4]) -> T {
        self.data[self.layout.index(index)]
    }
}

impl<'a, T> ViewMut<'a, T> {
    /// A view by strides in elements.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if an element lies outside of `data`. [`Error::Overlap`] unless the axes nest: sorted
    /// by stride, each must step over all that the smaller ones reach. (That also refuses a few exotic layouts that
    /// interleave without overlap.)
    pub fn new(
        data: &'a mut [T],
        shape: [usize; 4],
        strides: [isize; 4],
        offset: usize,
    ) -> Result<Self, Error> {
        // SAFETY: the same memory; the view writes numbers only.
        let data = unsafe { &mut *(&raw mut *data as *mut [MaybeUninit<T>]) };
        Self::unwritten(data, shape, strides, offset)
    }

    /// A view of memory that need not hold anything yet, such as a vector's
    /// [spare capacity](Vec::spare_capacity_mut): what returns without an error has written every element of the view.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    ///
    /// # Example
    ///
    /// ```
    /// use kernels::{Problem, View, ViewMut};
    ///
    /// let x = View::contiguous(&[2.0_f32], [1, 1, 1, 1])?;
    /// let mut out = Vec::with_capacity(1);
    /// let room = ViewMut::unwritten(&mut out.spare_capacity_mut()[..1], [1, 1, 1, 1], [1; 4], 0)?;
    /// kernels::forward(&Problem::new(x, x, x), room, &mut [0.0])?;
    /// // SAFETY: `forward` has written the only element.
    /// unsafe { out.set_len(1) };
    /// assert_eq!(out, [2.0]);
    /// # Ok::<(), kernels::Error>(())
    /// ```
    pub fn unwritten(
        data: &'a mut [MaybeUninit<T>],
        shape: [usize; 4],
        strides: [isize; 4],
        offset: usize,
    ) -> Result<Self, Error> {
        let layout = Layout::new(data.len(), shape, strides, offset)?;
        if !layout.is_injective() {
            return Err(Error::Overlap { shape, strides });
        }
        Ok(Self { data, layout })
    }

    /// A view of elements that lie one after another, the last axis fastest.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if `data` is shorter than the product of `shape`.
    pub fn contiguous(data: &'a mut [T], shape: [usize; 4]) -> Result<Self, Error> {
        Self::new(data, shape, contiguous_strides(shape), 0)
    }

    /// The sizes of the four axes.
    pub fn shape(&self) -> [usize; 4] {
        self.layout.shape
    }

    /// The strides of the four axes, in elements.
    pub fn strides(&self) -> [isize; 4] {
        self.layout.strides
    }
}

impl Layout {
    fn new(
        len: usize,
        shape: [usize; 4],
        strides: [isize; 4],
        offset: usize,
    ) -> Result<Self, Error> {
        let layout = Self {
            shape,
            strides,
            offset,
        };
        if shape.contains(&0) {
            return Ok(layout);
        }
        // Saturating: an overflow is out of bounds, too.
        let (mut lowest, mut highest) = (offset as isize, offset as isize);
        for (size, stride) in shape.into_iter().zip(strides) {
            let reach = ((size - 1) as isize).saturating_mul(stride);
            lowest = lowest.saturating_add(reach.min(0));
            highest = highest.saturating_add(reach.max(0));
        }
        let index = if lowest < 0 {
            lowest
        } else if highest >= len as isize || offset > isize::MAX as usize {
            // The first index outside: nothing below `len` is.
            if highest >= len as isize {
                len as isize
            } else {
                highest
            }
        } else {
            return Ok(layout);
        };
        Err(Error::OutOfBounds { shape, index, len })
    }

    fn is_injective(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut axes: Vec<(usize, usize)> = self
            .shape
            .into_iter()
            .zip(self.strides)
            .filter(|&(size, _)| size > 1)
            .map(|(size, stride)| (stride.unsigned_abs(), size))
            .collect();
        axes.sort_unstable();
        let mut reach = 0;
        axes.into_iter().all(|(stride, size)| {
            let nests = stride > reach;
            reach += stride * (size - 1);
            nests
        })
    }

    /// The position of an element in the data.
    pub(crate) fn index(&self, index: [usize; 4]) -> usize {
        let mut at = self.offset as isize;
        for axis in 0..4 {
            assert!(
                index[axis] < self.shape[axis],
                "index {index:?} outside of shape {:?}",
                self.shape
            );
            at += index[axis] as isize * self.strides[axis];
        }
        at as usize
    }

    /// The same layout with stride 0 on axes of size 1, so that any index along them reads the one element.
    pub(crate) fn broadcast(mut self) -> Self {
        for axis in 0..4 {
            if self.shape[axis] == 1 {
                self.strides[axis] = 0;
            }
        }
        self
    }

    /// The position of `[batch, head, row, 0]`, not checked against the shape.
    #[inline(always)]
    pub(crate) fn row(&self, batch: usize, head: usize, row: usize) -> isize {
        self.offset as isize
            + batch as isize * self.strides[0]
            + head as isize * self.strides[1]
            + row as isize * self.strides[2]
    }
}

fn contiguous_strides(shape: [usize; 4]) -> [isize; 4] {
    let mut strides = [1; 4];
    for axis in (0..3).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1] as isize;
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_that_leaves_its_data_is_refused() {
        let data = [0_u8; 10];
        assert!(View::new(&data, [1, 1, 2, 5], [10, 10, 5, 1], 0).is_ok());
        assert!(View::new(&data, [1, 1, 2, 5], [10, 10, 5, 1], 1).is_err());
        assert!(View::new(&data, [1, 1, 2, 5], [10, 10, -5, 1], 5).is_ok());
        assert!(View::new(&data, [1, 1, 2, 5], [10, 10, -5, 1], 4).is_err());
        assert!(View::new(&data, [9, 9, 1, 10], [0, 0, 0, 1], 0).is_ok());
        assert!(View::new(&data, [1, 1, 2, 2], [0, 0, isize::MAX, isize::MAX], 0).is_err());
        assert!(View::new(&data, [0, 1, 99, 99], [99, 99, 99, 1], 99).is_ok());
    }

    #[test]
    fn a_mutable_view_that_reaches_an_element_twice_is_refused() {
        let mut data = [0_u8; 24];
        let mut check = |shape, strides| ViewMut::new(&mut data, shape, strides, 0).is_ok();
        assert!(check([1, 2, 3, 4], [24, 12, 4, 1]));
        assert!(check([1, 2, 3, 4], [24, 4, 8, 1]));
        assert!(check([2, 1, 3, 4], [12, 0, 4, 1]));
        assert!(!check([1, 2, 3, 4], [24, 0, 4, 1]));
        assert!(!check([1, 2, 3, 4], [24, 12, 3, 1]));
    }
}
