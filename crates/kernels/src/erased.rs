//! Views whose element type is erased and rows of them as the arithmetic type.

use crate::element::sealed::{Store, StoreMut};
use crate::real::Real;
use crate::transpose::{SIDE, Square};
use crate::view::Layout;
use crate::{Element, View, ViewMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// A view to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a, A> {
    store: Store<'a, A>,
    layout: Layout,
}

/// Rows to read: row `r` starts at `data[r * pitch]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a, A> {
    pub(crate) data: &'a [A],
    pub(crate) pitch: usize,
}

impl<A> Rows<'_, A> {
    /// Whether rows of a width are so spread out that a block of them fights for a few sets of the first-level cache:
    /// 64 sets of lines of 64 bytes, of which a distance of 512 bytes or a multiple uses 8 at most.
    #[inline(always)]
    pub(crate) fn crowd(&self, width: usize) -> bool {
        self.pitch > width && (self.pitch * size_of::<A>()).is_multiple_of(512)
    }

    /// The rows from `row` on.
    #[inline(always)]
    pub(crate) fn skip(self, row: usize) -> Self {
        Self {
            data: self.data.get(row * self.pitch..).unwrap_or(&[]),
            pitch: self.pitch,
        }
    }
}

impl<'a, A: Real> Source<'a, A> {
    pub(crate) fn new<T: Element<Acc = A>>(view: &View<'a, T>) -> Self {
        Self {
            store: T::store(view.data),
            layout: view.layout.broadcast(),
        }
    }

    /// Rows for columns and columns for rows.
    #[inline(always)]
    pub(crate) fn turned(mut self) -> Self {
        self.layout.shape.swap(2, 3);
        self.layout.strides.swap(2, 3);
        self
    }

    /// `count` columns from `first` on.
    #[inline(always)]
    pub(crate) fn columns(mut self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.layout.shape[3]);
        let start = self.layout.offset as isize + first as isize * self.layout.strides[3];
        self.layout.offset = start as usize;
        self.layout.shape[3] = count;
        self
    }

    pub(crate) fn shape(&self) -> [usize; 4] {
        self.layout.shape
    }

    /// Strides; 0 along axes of size 1.
    pub(crate) fn strides(&self) -> [isize; 4] {
        self.layout.strides
    }

    /// `count` rows from `first` on where they lie, if their elements are of the arithmetic type and adjacent.
    #[inline(always)]
    pub(crate) fn direct(
        &self,
        batch: usize,
        head: usize,
        first: usize,
        count: usize,
    ) -> Option<Rows<'a, A>> {
        let Store::Native(data) = self.store else {
            return None;
        };
        let [.., row, element] = self.layout.strides;
        let width = self.layout.shape[3];
        if count == 0 || width == 0 || (element != 1 && width > 1) || (row < 0 && count > 1) {
            return None;
        }
        let pitch = if count > 1 { row as usize } else { 0 };
        let start = self.layout.row(batch, head, first) as usize;
        Some(Rows {
            data: &data[start..start + (count - 1) * pitch + width],
            pitch,
        })
    }

    /// `count` rows from `first` on: where they lie, or else copied to `copy`, `width` apart.
    #[inline(always)]
    pub(crate) fn rows<'s>(
        &self,
        batch: usize,
        head: usize,
        first: usize,
        count: usize,
        width: usize,
        copy: &'s mut [A],
    ) -> Rows<'s, A>
    where
        'a: 's,
    {
        if let Some(rows) = self.direct(batch, head, first, count) {
            return rows;
        }
        self.copied(batch, head, first, count, width, copy)
    }

    /// [`rows`](Self::rows) for products that visit each row many times: copied, too, where they
    /// [crowd](Rows::crowd).
    #[inline(always)]
    pub(crate) fn near_rows<'s>(
        &self,
        batch: usize,
        head: usize,
        first: usize,
        count: usize,
        width: usize,
        copy: &'s mut [A],
    ) -> Rows<'s, A>
    where
        'a: 's,
    {
        if let Some(rows) = self.direct(batch, head, first, count)
            && !rows.crowd(width)
        {
            return rows;
        }
        self.copied(batch, head, first, count, width, copy)
    }

    #[inline(always)]
    fn copied<'s>(
        &self,
        batch: usize,
        head: usize,
        first: usize,
        count: usize,
        width: usize,
        copy: &'s mut [A],
    ) -> Rows<'s, A> {
        for r in 0..count {
            self.read(
                batch,
                head,
                first + r,
                0,
                &mut copy[r * width..(r + 1) * width],
            );
        }
        Rows {
            data: &copy[..count * width],
            pitch: width,
        }
    }

    /// Copies the elements of a row from `column` on.
    pub(crate) fn read(&self, batch: usize, head: usize, row: usize, column: usize, to: &mut [A]) {
        let stride = self.layout.strides[3];
        let start = self.layout.row(batch, head, row) + column as isize * stride;
        match self.store {
            Store::Native(data) => copy(data, start, stride, to, |x| x),
            Store::F16(data) => copy(data, start, stride, to, |x| A::from_f32(x.to_f32())),
            Store::Bf16(data) => copy(data, start, stride, to, |x| A::from_f32(x.to_f32())),
        }
    }
}

#[inline(always)]
fn copy<T: Copy, A>(data: &[T], start: isize, stride: isize, to: &mut [A], cast: impl Fn(T) -> A) {
    if to.is_empty() {
        return;
    }
    if stride == 1 {
        let from = &data[start as usize..start as usize + to.len()];
        for (to, &from) in to.iter_mut().zip(from) {
            *to = cast(from);
        }
    } else {
        for (k, to) in to.iter_mut().enumerate() {
            *to = cast(data[(start + k as isize * stride) as usize]);
        }
    }
}

/// A mutable view that several threads write, each its own rows.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a, A> {
    store: StoreMut<A>,
    layout: Layout,
    life: PhantomData<&'a mut [A]>,
}

// SAFETY: the memory is reached only through the unsafe methods, whose callers write disjoint rows.
unsafe impl<A: Send> Send for Target<'_, A> {}
// SAFETY: as above.
unsafe impl<A: Send> Sync for Target<'_, A> {}

impl<'a, A: Real> Target<'a, A> {
    pub(crate) fn new<T: Element<Acc = A>>(view: ViewMut<'a, T>) -> Self {
        Self {
            store: T::store_mut(view.data),
            layout: view.layout,
            life: PhantomData,
        }
    }

    pub(crate) fn shape(&self) -> [usize; 4] {
        self.layout.shape
    }

    /// Whether [`Target::room`] gives rows.
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.store, StoreMut::Native(_))
            && (self.layout.strides[3] == 1 || self.layout.shape[3] == 1)
    }

    /// A row where it lies, if its elements are of the arithmetic type and adjacent; it may hold nothing yet.
    ///
    /// # Safety
    ///
    /// The index must lie inside of the shape, and until the slice is gone nothing else may use this row.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn room(
        &self,
        batch: usize,
        head: usize,
        row: usize,
    ) -> Option<&'a mut [MaybeUninit<A>]> {
        match self.store {
            StoreMut::Native(data) if self.is_direct() => {
                let start = self.layout.row(batch, head, row);
                // SAFETY: the view's constructor found every element inside of its data and no element reached
                // twice; the caller promises that the row is inside and not in use.
                Some(unsafe {
                    let start = data.offset(start).cast();
                    std::slice::from_raw_parts_mut(start, self.layout.shape[3])
                })
            }
            _ => None,
        }
    }

    /// Writes a row.
    ///
    /// # Safety
    ///
    /// The index must lie inside of the shape, and nothing else may use this row meanwhile.
    pub(crate) unsafe fn write(&self, batch: usize, head: usize, row: usize, from: &[A]) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.write_from((batch, head, row, 0), from) }
    }

    /// Writes part of a row: index of batch, head and row, and the column it starts at.
    ///
    /// # Safety
    ///
    /// The index must lie inside of the shape, and nothing else may use these elements meanwhile.
    pub(crate) unsafe fn write_from(
        &self,
        (batch, head, row, column): (usize, usize, usize, usize),
        from: &[A],
    ) {
        assert!(column + from.len() <= self.layout.shape[3]);
        let stride = self.layout.strides[3];
        let start = self.layout.row(batch, head, row) + column as isize * stride;
        for (k, &x) in from.iter().enumerate() {
            let at = start + k as isize * stride;
            // SAFETY: as in `room`; the assertion keeps `k` inside of the row.
            unsafe {
                match self.store {
                    StoreMut::Native(data) => data.offset(at).write(x),
                    StoreMut::F16(data) => data.offset(at).write(half::f16::from_f64(x.into())),
                    StoreMut::Bf16(data) => data.offset(at).write(half::bf16::from_f64(x.into())),
                }
            }
        }
    }
}

/// A mutable slice of which several threads write disjoint parts.
#[derive(Debug, Clone, Copy)]
pub struct Shared<'a, A> {
    data: *mut A,
    len: usize,
    life: PhantomData<&'a mut [A]>,
}

// SAFETY: the memory is reached only through unsafe functions, whose callers take disjoint parts.
unsafe impl<A: Send> Send for Shared<'_, A> {}
// SAFETY: as above.
unsafe impl<A: Send> Sync for Shared<'_, A> {}

impl<'a, A> Shared<'a, A> {
    pub(crate) fn new(data: &'a mut [A]) -> Self {
        Self {
            data: data.as_mut_ptr(),
            len: data.len(),
            life: PhantomData,
        }
    }

    /// Memory that nothing has written yet: each element is to be [cleared](Self::clear), or written as
    /// [`room`](Self::room), before it is part of a [`part`](Self::part).
    pub(crate) fn unwritten(data: &'a mut [MaybeUninit<A>]) -> Self {
        Self {
            data: data.as_mut_ptr().cast(),
            len: data.len(),
            life: PhantomData,
        }
    }

    /// Makes a part of the slice zero.
    ///
    /// # Safety
    ///
    /// Nothing else may use any element of it meanwhile.
    pub(crate) unsafe fn clear(&self, start: usize, len: usize)
    where
        A: Real,
    {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: inside of the slice by the assertion; zero bytes are the number 0.
        unsafe { self.data.add(start).write_bytes(0, len) };
    }

    /// A part of the slice that may hold nothing yet.
    ///
    /// # Safety
    ///
    /// Until the part is gone nothing else may use any element of it.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn room(&self, start: usize, len: usize) -> &'a mut [MaybeUninit<A>] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: inside of the slice by the assertion; the caller promises that it is not in use.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start).cast(), len) }
    }

    /// A part of the slice.
    ///
    /// # Safety
    ///
    /// Until the part is gone nothing else may use any element of it; all were written before.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &'a mut [A] {
        // SAFETY: the caller's promise; all elements were written.
        unsafe { self.room(start, len).assume_init_mut() }
    }
}

/// Rows that sums are added to. They may hold nothing at first.
#[derive(Debug)]
pub(crate) struct Sums<'a, A> {
    data: *mut A,
    pitch: isize,
    rows: usize,
    width: usize,
    life: PhantomData<&'a mut [A]>,
}

impl<'a, A: Real> Sums<'a, A> {
    /// No rows.
    pub(crate) fn nothing() -> Self {
        Self {
            data: std::ptr::NonNull::dangling().as_ptr(),
            pitch: 0,
            rows: 0,
            width: 0,
            life: PhantomData,
        }
    }

    /// `rows` rows of `width` from row `first` on of a slice of such rows.
    ///
    /// # Safety
    ///
    /// Until the sums are gone nothing else may use the rows that are reached through them.
    pub(crate) unsafe fn part(
        memory: &Shared<'a, A>,
        first: usize,
        rows: usize,
        width: usize,
    ) -> Option<Self> {
        assert!((first + rows) * width <= memory.len);
        (rows * width > 0).then(|| Self {
            // SAFETY: inside of the slice by the assertion.
            data: unsafe { memory.data.add(first * width) },
            pitch: width as isize,
            rows,
            width,
            life: PhantomData,
        })
    }

    /// The rows of a head where they lie, if [`Target::is_direct`].
    ///
    /// # Safety
    ///
    /// Batch and head must lie inside of the shape, and until the sums are gone nothing else may use the rows of this
    /// head that are reached through them.
    pub(crate) unsafe fn of(target: &Target<'a, A>, batch: usize, head: usize) -> Option<Self> {
        let [.., rows, width] = target.layout.shape;
        match target.store {
            StoreMut::Native(data) if target.is_direct() && rows > 0 && width > 0 => Some(Self {
                // SAFETY: row 0 of the head is inside of the data, as the view's constructor has checked.
                data: unsafe { data.offset(target.layout.row(batch, head, 0)) },
                pitch: target.layout.strides[2],
                rows,
                width,
                life: PhantomData,
            }),
            _ => None,
        }
    }

    /// A row, which may hold nothing yet.
    #[inline(always)]
    pub(crate) fn room(&mut self, row: usize) -> &mut [MaybeUninit<A>] {
        assert!(row < self.rows);
        // SAFETY: rows below `rows` lie inside of the data, by the slice's length or by the view's constructor; no
        // two overlap; the exclusive borrow of `self` keeps this the only slice.
        unsafe {
            let start = self.data.offset(row as isize * self.pitch).cast();
            std::slice::from_raw_parts_mut(start, self.width)
        }
    }

    /// Writes a square at a row and column.
    #[inline(always)]
    pub(crate) fn write_square(&mut self, row: usize, column: usize, square: &Square<A>) {
        assert!(row + SIDE <= self.rows && column + SIDE <= self.width);
        for r in 0..SIDE {
            // SAFETY: as in `room`; the assertion keeps all rows and columns inside.
            unsafe {
                let to = self
                    .data
                    .offset((row + r) as isize * self.pitch + column as isize);
                to.copy_from_nonoverlapping(square.row(r).as_ptr(), SIDE);
            }
        }
    }

    pub(crate) fn clear(&mut self, first: usize, end: usize) {
        for row in first..end.min(self.rows) {
            self.room(row).fill(MaybeUninit::new(A::ZERO));
        }
    }
}
