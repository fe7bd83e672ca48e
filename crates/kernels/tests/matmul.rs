//! Products of matrices against a plain loop in f64.

mod common;

use common::{Number, Random, cast, widen};
use kernels::{Error, Isa, Matmul, Real, View, matmul, matmul_vec};

/// How a matrix of a given shape lies in memory.
#[derive(Debug, Clone, Copy)]
enum Lie {
    /// Row after row.
    Rows,
    /// Column after column.
    Columns,
    /// Every second element of rows that are longer, from the last row to the first.
    Spread,
    /// Rows with something between them.
    Apart,
}

const LIES: [Lie; 4] = [Lie::Rows, Lie::Columns, Lie::Spread, Lie::Apart];

/// A matrix of random numbers and its memory. What lies between its elements is NaN.
struct Matrix<T> {
    memory: Vec<T>,
    shape: [usize; 2],
    strides: [isize; 2],
    offset: usize,
}

impl<T: Real + Number> Matrix<T> {
    fn new(shape: [usize; 2], lie: Lie, random: &mut Random) -> Self {
        let [rows, columns] = shape.map(|size| size as isize);
        let (strides, offset) = match lie {
            Lie::Rows => ([columns, 1], 0),
            Lie::Columns => ([1, rows], 0),
            Lie::Spread => ([-2 * columns - 1, 2], (rows - 1).max(0) * (2 * columns + 1)),
            Lie::Apart => ([columns + 3, 1], 2),
        };
        let mut matrix = Self {
            memory: vec![
                <T as Number>::from_f64(f64::NAN);
                2 + (rows * (2 * columns + 3)) as usize
            ],
            shape,
            strides,
            offset: offset as usize,
        };
        for row in 0..shape[0] {
            for column in 0..shape[1] {
                let at = matrix.at(row, column);
                matrix.memory[at] = <T as Number>::from_f64(random.normal());
            }
        }
        matrix
    }

    fn at(&self, row: usize, column: usize) -> usize {
        let [down, right] = self.strides;
        (self.offset as isize + row as isize * down + column as isize * right) as usize
    }

    fn get(&self, row: usize, column: usize) -> f64 {
        self.memory[self.at(row, column)].to_f64()
    }

    /// The rows from `first` on.
    fn view(&self, first: usize, rows: usize) -> View<'_, T> {
        let shape = [1, 1, rows, self.shape[1]];
        let strides = [0, 0, self.strides[0], self.strides[1]];
        let offset = if self.shape[1] == 0 {
            0
        } else {
            self.at(first, 0)
        };
        View::new(&self.memory, shape, strides, offset).unwrap()
    }
}

struct Pair<T> {
    left: Matrix<T>,
    right: Matrix<T>,
    bias: Option<Vec<T>>,
}

impl<T: Real + Number> Pair<T> {
    fn new([rows, depth, columns]: [usize; 3], lies: [Lie; 2], random: &mut Random) -> Self {
        Self {
            left: Matrix::new([rows, depth], lies[0], random),
            right: Matrix::new([depth, columns], lies[1], random),
            bias: random.chance(50).then(|| cast(&random.normals(columns))),
        }
    }

    /// The product of some rows.
    fn rows(&self, first: usize, rows: usize, isa: Isa) -> Vec<T> {
        let [depth, columns] = self.right.shape;
        let mut problem = Matmul::new(self.left.view(first, rows), self.right.view(0, depth));
        problem.bias = self.bias.as_deref();
        problem.isa = isa;
        let mut out = vec![<T as Number>::from_f64(f64::NAN); rows * columns];
        matmul(&problem, &mut out).unwrap();
        let bits = |numbers: &[T]| {
            widen(numbers)
                .into_iter()
                .map(f64::to_bits)
                .collect::<Vec<_>>()
        };
        assert!(bits(&matmul_vec(&problem).unwrap()) == bits(&out));
        out
    }

    fn all(&self, isa: Isa) -> Vec<T> {
        self.rows(0, self.left.shape[0], isa)
    }

    /// Relative Frobenius error of a product.
    fn error(&self, found: &[T]) -> f64 {
        let [depth, columns] = self.right.shape;
        let (mut off, mut size) = (0.0, 0.0);
        for (at, found) in widen(found).into_iter().enumerate() {
            let (row, column) = (at / columns, at % columns);
            let mut sum = self.bias.as_ref().map_or(0.0, |bias| bias[column].to_f64());
            for k in 0..depth {
                sum += self.left.get(row, k) * self.right.get(k, column);
            }
            off += (found - sum).powi(2);
            size += sum.powi(2);
        }
        if off == 0.0 { 0.0 } else { (off / size).sqrt() }
    }
}

/// Rows, depth and columns: about the sizes of tiles, panels, blocks and steps.
const SHAPES: [[usize; 3]; 14] = [
    [1, 1, 1],
    [1, 300, 517],
    [3, 7, 131],
    [5, 0, 11],
    [7, 17, 5],
    [12, 257, 33],
    [13, 256, 16],
    [31, 5, 64],
    [61, 513, 67],
    [97, 31, 139],
    [199, 41, 23],
    [211, 263, 521],
    // The right matrix stays packed for one block of rows after another: over several panels, and two blocks of columns.
    [523, 263, 7],
    [293, 17, 521],
];

fn equals_the_plain_loop<T: Real + Number>(bound: f64) {
    let mut random = Random(1);
    for (turn, shape) in SHAPES.into_iter().enumerate() {
        for (first, left) in LIES.into_iter().enumerate() {
            // All pairs would take minutes; these meet each other at one shape or the next.
            let right = LIES[(first + turn) % LIES.len()];
            let pair = Pair::<T>::new(shape, [left, right], &mut random);
            for isa in Isa::available() {
                let error = pair.error(&pair.all(isa));
                assert!(
                    error <= bound,
                    "{shape:?} {left:?} {right:?} {isa:?}: {error:e}"
                );
            }
        }
    }
}

#[test]
fn products_equal_those_of_a_plain_loop_on_every_instruction_set_however_matrices_lie() {
    equals_the_plain_loop::<f32>(5e-7);
    equals_the_plain_loop::<f64>(1e-15);
}

/// Random samples `[batch, 1, length, width]` with NaN between them, and the same ones with nothing between.
struct Samples {
    memory: Vec<f32>,
    shape: [usize; 4],
    strides: [isize; 4],
    offset: usize,
    together: Vec<f32>,
}

impl Samples {
    /// Elements are so far apart; the last sample comes first.
    fn new([batch, length, width]: [usize; 3], element: usize, random: &mut Random) -> Self {
        let row = width * element + 3;
        let sample = (length + 2) * row;
        let offset = (batch - 1) * sample;
        let mut samples = Self {
            memory: vec![f32::NAN; batch * sample],
            shape: [batch, 1, length, width],
            strides: [-(sample as isize), 0, row as isize, element as isize],
            offset,
            together: cast(&random.normals(batch * length * width)),
        };
        for (at, &x) in samples.together.iter().enumerate() {
            let (line, column) = (at / width, at % width);
            let start = offset - line / length * sample + line % length * row;
            samples.memory[start + column * element] = x;
        }
        samples
    }

    fn apart(&self) -> View<'_, f32> {
        View::new(&self.memory, self.shape, self.strides, self.offset).unwrap()
    }

    fn together(&self) -> View<'_, f32> {
        View::contiguous(&self.together, self.shape).unwrap()
    }
}

#[test]
fn samples_with_gaps_between_them_are_read_as_one_matrix() {
    let mut random = Random(5);
    for [batch, length, width, other] in [[2, 3, 5, 7], [41, 17, 67, 31], [3, 127, 13, 211]] {
        for element in [1, 2] {
            let left = Samples::new([batch, length, width], element, &mut random);
            let right = Samples::new([batch, length, other], element, &mut random);
            let weight = cast(&random.normals(width * other));
            let weight = View::contiguous(&weight, [1, 1, width, other]).unwrap();
            for isa in Isa::available() {
                let multiply = |left: View<f32>, right, turn_left| {
                    let mut problem = Matmul::new(left, right);
                    (problem.turn_left, problem.isa) = (turn_left, isa);
                    let [batch, _, length, columns] = left.shape();
                    let rows = if turn_left { columns } else { batch * length };
                    let mut out = vec![f32::NAN; rows * other];
                    matmul(&problem, &mut out).unwrap();
                    out
                };
                assert!(
                    multiply(left.apart(), weight, false)
                        == multiply(left.together(), weight, false),
                    "{batch} x {length} x {width}, {isa:?}"
                );
                let gradient = multiply(left.together(), right.together(), true);
                for (left, right) in [
                    (left.apart(), right.apart()),
                    (left.apart(), right.together()),
                    (left.together(), right.apart()),
                ] {
                    assert!(
                        multiply(left, right, true) == gradient,
                        "gradient, {batch} x {length} x {width}, {isa:?}"
                    );
                }
                // Turned by strides, it is the same.
                let (shape, strides) = ([1, 1, width, batch * length], [0, 0, 1, width as isize]);
                let turned = View::new(&left.together, shape, strides, 0).unwrap();
                assert!(multiply(turned, right.together(), false) == gradient);
            }
        }
    }
}

#[test]
fn infinities_and_nan_stay_in_their_rows_and_columns() {
    let mut random = Random(4);
    for [rows, depth, columns] in SHAPES.into_iter().filter(|shape| !shape.contains(&0)) {
        let mut pair =
            Pair::<f32>::new([rows, depth, columns], [Lie::Rows, Lie::Rows], &mut random);
        let clean = pair.all(Isa::best());
        let (row, column) = (rows / 2, columns - 1);
        let (left, right) = (pair.left.at(row, depth - 1), pair.right.at(0, column));
        pair.left.memory[left] = f32::NAN;
        pair.right.memory[right] = f32::INFINITY;
        for isa in Isa::available() {
            let found = pair.all(isa);
            for (at, found) in found.iter().enumerate() {
                let touched = at / columns == row || at % columns == column;
                assert_eq!(
                    found.is_finite(),
                    !touched,
                    "{rows} x {depth} x {columns} {isa:?}"
                );
            }
        }
        for (at, found) in pair.all(Isa::best()).iter().enumerate() {
            assert!(*found == clean[at] || !found.is_finite());
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    has_the_same_bits::<f32>();
    has_the_same_bits::<f64>();
}

fn has_the_same_bits<T: Real + Number>() {
    let mut random = Random(2);
    for lies in LIES
        .into_iter()
        .zip([Lie::Columns, Lie::Rows, Lie::Rows, Lie::Spread])
    {
        let pair = Pair::<T>::new([283, 263, 139], [lies.0, lies.1], &mut random);
        for isa in Isa::available() {
            let all = pair.all(isa);
            for (first, rows) in [
                (0, 1),
                (57, 2),
                (101, 3),
                (83, 4),
                (7, 11),
                (150, 13),
                (20, 60),
            ] {
                let some = pair.rows(first, rows, isa);
                let place = first * 139;
                assert!(
                    some == all[place..place + some.len()],
                    "{lies:?} {isa:?} {rows} rows"
                );
            }
        }
    }
}

#[cfg(feature = "rayon")]
#[test]
fn the_number_of_threads_changes_no_bit() {
    let mut random = Random(3);
    for shape in [[211, 263, 521], [523, 263, 67]] {
        let pair = Pair::<f32>::new(shape, [Lie::Rows, Lie::Rows], &mut random);
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| pair.all(Isa::best()))
        };
        let one = on(1);
        for threads in [2, 3, 7, 16] {
            assert!(one == on(threads), "{shape:?}, {threads} threads");
        }
    }
}

#[test]
fn without_depth_the_product_is_the_bias_and_without_rows_it_is_nothing() {
    let bias = [1.5_f32, -2.5];
    let nothing = View::contiguous(&[], [1, 1, 3, 0]).unwrap();
    let mut problem = Matmul::new(nothing, View::contiguous(&[], [1, 1, 0, 2]).unwrap());
    let mut out = [f32::NAN; 6];
    matmul(&problem, &mut out).unwrap();
    assert_eq!(out, [0.0; 6]);
    problem.bias = Some(&bias);
    matmul(&problem, &mut out).unwrap();
    assert_eq!(out, [1.5, -2.5, 1.5, -2.5, 1.5, -2.5]);

    // Samples without rows, with gaps between them.
    let empty = |shape, strides| View::new(&[], shape, strides, 0).unwrap();
    let mut gradient = Matmul::new(
        empty([2, 1, 0, 3], [6, 6, 3, 1]),
        empty([2, 1, 0, 2], [8, 8, 4, 1]),
    );
    gradient.turn_left = true;
    out.fill(f32::NAN);
    matmul(&gradient, &mut out).unwrap();
    assert_eq!(out, [0.0; 6]);

    let weight = [1.0_f32; 6];
    let weight = View::contiguous(&weight, [1, 1, 3, 2]).unwrap();
    let none = View::contiguous(&[], [1, 1, 0, 3]).unwrap();
    matmul(&Matmul::new(none, weight), &mut []).unwrap();
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let data = [0.0_f32; 24];
    let view = |shape| View::contiguous(&data, shape).unwrap();
    let message = |left, right, bias: Option<&[f32]>, out: usize| {
        let mut problem = Matmul::new(view(left), view(right));
        problem.bias = bias;
        let error: Error = matmul(&problem, &mut vec![0.0; out]).unwrap_err();
        error.to_string()
    };
    assert_eq!(
        message([1, 1, 2, 3], [1, 1, 4, 5], None, 10),
        "right must have size 3 along depth, but has 4"
    );
    assert_eq!(
        message([1, 3, 2, 3], [1, 1, 3, 5], None, 10),
        "left must have size 1 along heads, but has 3"
    );
    assert_eq!(
        message([2, 1, 2, 3], [1, 1, 3, 5], None, 10),
        "out must have length 20, but has 10"
    );
    assert_eq!(
        message([1, 1, 2, 3], [2, 1, 2, 5], None, 10),
        "right must have size 3 along depth, but has 4"
    );
    assert_eq!(
        message([1, 1, 2, 3], [1, 2, 3, 4], None, 10),
        "right must have size 1 along heads, but has 2"
    );
    assert_eq!(
        message([1, 1, 2, 3], [1, 1, 3, 5], Some(&data[..4]), 10),
        "bias must have length 5, but has 4"
    );
    assert_eq!(
        message([1, 1, 2, 3], [1, 1, 3, 5], None, 11),
        "out must have length 10, but has 11"
    );
    let endless = View::new(&data, [1, 1, 1 << 62, 1], [0; 4], 0).unwrap();
    let error = matmul(&Matmul::new(endless, view([1, 1, 1, 4])), &mut []).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("out must have length {}, but has 0", usize::MAX)
    );
}
