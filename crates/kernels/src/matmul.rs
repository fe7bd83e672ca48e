//! The products of the linear layers around attention.

use crate::erased::{Shared, Source};
use crate::problem::{check_axes, check_len};
use crate::product::Product;
use crate::real::Real;
use crate::{Error, Isa, View};

/// A product of two matrices, `left * right + bias`: a projection of rows, or with one of them turned over a gradient of
/// it.
///
/// Matrices are [`View`]s whose first two axes have size 1. By their strides a matrix that is to be turned over is read
/// where it lies.
///
/// # Shapes
///
/// - left: `[1, 1, rows, depth]`
/// - right: `[1, 1, depth, columns]`
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
/// // The gradient at the input multiplies with the weight turned over.
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
    let Matmul {
        left,
        right,
        bias,
        isa,
    } = problem;
    let [.., rows, depth] = left.shape();
    let [.., columns] = right.shape();
    let axes = |row, column| ["batch", "heads", row, column];
    let [at_left, at_right] = [axes("rows", "depth"), axes("depth", "columns")];
    check_axes("left", at_left, left.shape(), [1, 1, rows, depth])?;
    check_axes("right", at_right, right.shape(), [1, 1, depth, columns])?;
    if let Some(bias) = bias {
        check_len("bias", bias.len(), columns)?;
    }
    check_len("out", out.len(), rows.saturating_mul(columns))?;
    if !isa.is_available() {
        return Err(Error::Isa(*isa));
    }
    T::product(&Product {
        isa: *isa,
        rows,
        depth,
        columns,
        left: Source::new(left),
        right: Source::new(right),
        bias: *bias,
        out: Shared::new(out),
    });
    Ok(())
}
