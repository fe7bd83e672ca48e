//! The products of the linear layers around attention.

use crate::erased::Shared;
use crate::factors::Factor;
use crate::problem::{check_axes, check_len};
use crate::product::Product;
use crate::real::Real;
use crate::{Error, Isa, View};

/// A product of two matrices, `left * right + bias`: a projection of rows, or with one of them turned over a gradient of
/// it.
///
/// A matrix is made of the rows of all samples of a [`View`], one after another, and read where they lie.
///
/// # Shapes
///
/// - left: `[batch, 1, length, depth]`, which is `batch * length` rows; or, if it is turned, `[batch, 1, length, rows]`,
///   whose depth is `batch * length`
/// - right: `[batch, 1, length, columns]`, where `batch * length` is the depth
/// - bias: `columns` entries
///
/// # Example
///
/// ```
/// use kernels::{Matmul, View};
///
/// let (x, weight) = ([1.0_f32, 2.0], [3.0, 4.0, 5.0, 6.0]);
/// let mut projection = Matmul::new(
///     View::contiguous(&x, [1, 1, 1, 2])?,
///     View::contiguous(&weight, [1, 1, 2, 2])?,
/// );
/// projection.bias = Some(&[0.5, -0.5]);
/// let mut out = [0.0; 2];
/// kernels::matmul(&projection, &mut out)?;
/// assert_eq!(out, [13.5, 15.5]);
///
/// // The gradient at the weight: the input turned over, times the gradient at the output.
/// let mut gradient = [0.0; 4];
/// projection.right = View::contiguous(&[1.0, 10.0], [1, 1, 1, 2])?;
/// projection.bias = None;
/// projection.turn_left = true;
/// kernels::matmul(&projection, &mut gradient)?;
/// assert_eq!(gradient, [1.0, 10.0, 2.0, 20.0]);
///
/// // The gradient at the input: that at the output times the weight, which strides turn over.
/// let mut gradient = [0.0; 2];
/// let turned = View::new(&weight, [1, 1, 2, 2], [4, 4, 1, 2], 0)?;
/// kernels::matmul(&Matmul::new(View::contiguous(&[1.0, 10.0], [1, 1, 1, 2])?, turned), &mut gradient)?;
/// assert_eq!(gradient, [43.0, 65.0]);
/// # Ok::<(), kernels::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Matmul<'a, T: Real> {
    /// The left matrix.
    pub left: View<'a, T>,
    /// Whether columns of the left matrix are read for its rows; not by default.
    pub turn_left: bool,
    /// The right matrix.
    pub right: View<'a, T>,
    /// Added to each row; none by default.
    pub bias: Option<&'a [T]>,
    /// The vector instructions to use; the best of the machine by default.
    pub isa: Isa,
}

impl<'a, T: Real> Matmul<'a, T> {
    /// A product without a bias.
    pub fn new(left: View<'a, T>, right: View<'a, T>) -> Self {
        Self {
            left,
            turn_left: false,
            right,
            bias: None,
            isa: Isa::best(),
        }
    }
}

/// The product, `rows * columns` entries, row after row.
///
/// A row does not depend, by a bit, on how many others there are, nor on the number of threads.
///
/// # Errors
///
/// If shapes do not fit together or the instructions asked for are missing. Nothing is written then.
///
/// # Example
///
/// As [`Matmul`]'s.
pub fn matmul<T: Real>(problem: &Matmul<T>, out: &mut [T]) -> Result<(), Error> {
    let sizes = Sizes::of(problem)?;
    check_len("out", out.len(), sizes.out())?;
    run(problem, sizes, Shared::new(out));
    Ok(())
}

/// [`matmul`] into a vector of its own.
///
/// Large results are ready sooner than in a vector that was made of zeros: their memory comes from the system page by
/// page, here for each thread what it computes.
///
/// # Errors
///
/// As [`matmul`].
///
/// # Panics
///
/// If there is no room for the result, as [`Vec::with_capacity`].
///
/// # Example
///
/// ```
/// use kernels::{Matmul, View};
///
/// let left = View::contiguous(&[1.0_f64, 2.0], [1, 1, 1, 2])?;
/// let right = View::contiguous(&[3.0, 4.0, 5.0, 6.0], [1, 1, 2, 2])?;
/// assert_eq!(kernels::matmul_vec(&Matmul::new(left, right))?, [13.0, 16.0]);
/// # Ok::<(), kernels::Error>(())
/// ```
pub fn matmul_vec<T: Real>(problem: &Matmul<T>) -> Result<Vec<T>, Error> {
    let sizes = Sizes::of(problem)?;
    let len = sizes.out();
    let mut out = Vec::with_capacity(len);
    run(
        problem,
        sizes,
        Shared::unwritten(&mut out.spare_capacity_mut()[..len]),
    );
    // SAFETY: each element is in the block of a task, whose first steps have written it.
    unsafe { out.set_len(len) };
    Ok(out)
}

/// The sizes of a product that has been checked.
struct Sizes {
    rows: usize,
    depth: usize,
    columns: usize,
}

impl Sizes {
    /// An error if a problem's shapes do not fit together, or its instructions are missing.
    fn of<T: Real>(problem: &Matmul<T>) -> Result<Self, Error> {
        let names = |row, column| ["batch", "heads", row, column];
        let found = problem.left.shape();
        let [batch, _, length, width] = found;
        let joined = batch.saturating_mul(length);
        let (axes, rows, depth) = match problem.turn_left {
            false => (names("length", "depth"), joined, width),
            true => (names("length", "rows"), width, joined),
        };
        check_axes("left", axes, found, [batch, 1, length, width])?;
        let [batch, heads, length, columns] = problem.right.shape();
        check_axes(
            "right",
            names("depth", "columns"),
            [1, heads, batch.saturating_mul(length), columns],
            [1, 1, depth, columns],
        )?;
        if let Some(bias) = problem.bias {
            check_len("bias", bias.len(), columns)?;
        }
        match problem.isa.is_available() {
            true => Ok(Self {
                rows,
                depth,
                columns,
            }),
            false => Err(Error::Isa(problem.isa)),
        }
    }

    /// Entries of the result.
    fn out(&self) -> usize {
        self.rows.saturating_mul(self.columns)
    }
}

fn run<T: Real>(problem: &Matmul<T>, sizes: Sizes, out: Shared<T>) {
    T::product(&Product {
        isa: problem.isa,
        rows: sizes.rows,
        depth: sizes.depth,
        columns: sizes.columns,
        left: Factor::new(&problem.left, problem.turn_left),
        right: Factor::new(&problem.right, false),
        bias: problem.bias,
        out,
    });
}
