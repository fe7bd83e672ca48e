//! Sums of squares on the device, in a number format that holds them.

use burn::tensor::{DType, Device, FloatDType, Tensor};

/// How a tensor's sum of squares is spread over the numbers read from the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Squares {
    /// One sum: the format is so much wider than the gradient's that nothing overflows or vanishes.
    Plain,
    /// Three sums, of x, x * `down` and x * `up`: one of them is in range whatever x is.
    Ranged(Range),
}

/// Powers of two, so that scaling is exact, chosen for one number format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Range {
    /// Brings the largest finite number to where 2^32 squares still have a finite sum.
    down: f64,
    /// Brings the smallest numbers to where their squares are normal numbers.
    up: f64,
    /// From here on, squares that vanished cannot matter to the plain sum.
    trusted: f64,
}

impl Range {
    const F32: Self = Self {
        down: power_of_two(-80),
        up: power_of_two(90),
        trusted: power_of_two(-60),
    };
    const F64: Self = Self {
        down: power_of_two(-600),
        up: power_of_two(600),
        trusted: power_of_two(-800),
    };
}

const fn power_of_two(exponent: i32) -> f64 {
    const BIAS: i32 = 1023;
    const MANTISSA_BITS: u32 = 52;
    f64::from_bits(((exponent + BIAS) as u64) << MANTISSA_BITS)
}

/// The format in which this device sums squares: f64 where it computes in f64, else f32.
pub(crate) fn sum_dtype(device: &Device) -> FloatDType {
    if device.supports_dtype(FloatDType::F64) {
        FloatDType::F64
    } else {
        FloatDType::F32
    }
}

impl Squares {
    fn new(gradient: DType, sum: FloatDType) -> Self {
        match (gradient, sum) {
            (DType::F64, FloatDType::F64) => Self::Ranged(Range::F64),
            (_, FloatDType::F64) => Self::Plain,
            // The square of the largest f16 is 2^32, that of the smallest 2^-48.
            (DType::F16, _) => Self::Plain,
            _ => Self::Ranged(Range::F32),
        }
    }

    /// How many numbers [`sum`] gives.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Plain => 1,
            Self::Ranged(_) => 3,
        }
    }

    /// The L2 norm, from the numbers [`sum`] gave.
    pub(crate) fn norm(self, sums: &[f64]) -> f64 {
        match self {
            Self::Plain => sums[0].sqrt(),
            Self::Ranged(range) => range.norm(sums[0], sums[1], sums[2]),
        }
    }
}

impl Range {
    fn norm(self, plain: f64, down: f64, up: f64) -> f64 {
        // The sum scaled down overflows for an infinite gradient only, and is NaN for a NaN only:
        // squares have one sign, so no infinities cancel.
        if !down.is_finite() {
            down.sqrt()
        } else if !plain.is_finite() {
            down.sqrt() / self.down
        } else if plain >= self.trusted {
            plain.sqrt()
        } else {
            up.sqrt() / self.up
        }
    }
}

/// The sums of a gradient's squares, and how to read them.
///
/// # Shapes
///
/// - grad: any, with at least one element
/// - output: `[Squares::len]`, of type `dtype`
pub(crate) fn sum<const D: usize>(grad: Tensor<D>, dtype: FloatDType) -> (Tensor<1>, Squares) {
    let squares = Squares::new(grad.dtype(), dtype);
    let grad = grad.cast(dtype);
    let sum = |grad: Tensor<D>| grad.square().sum();
    let sums = match squares {
        Squares::Plain => sum(grad),
        Squares::Ranged(range) => Tensor::cat(
            vec![
                sum(grad.clone()),
                sum(grad.clone().mul_scalar(range.down)),
                sum(grad.mul_scalar(range.up)),
            ],
            0,
        ),
    };
    (sums, squares)
}

/// The L2 norm of a vector of norms.
pub(crate) fn norm_of(norms: impl Iterator<Item = f64> + Clone) -> f64 {
    let plain: f64 = norms.clone().map(|norm| norm * norm).sum();
    let scaled = |by: f64| norms.map(|norm| (norm * by) * (norm * by)).sum();
    let range = Range::F64;
    if plain.is_finite() && plain >= range.trusted {
        return plain.sqrt();
    }
    let down: f64 = scaled.clone()(range.down);
    range.norm(plain, down, scaled(range.up))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::TensorData;

    fn norm(values: &[f64], gradient: FloatDType, sum_in: FloatDType) -> f64 {
        let data = TensorData::new(values.to_vec(), [values.len()]);
        let grad = Tensor::<1>::from_data(data, (&Device::default(), gradient.into()));
        let (sums, squares) = sum(grad, sum_in);
        let sums: Vec<f64> = sums.into_data().iter::<f64>().collect();
        assert_eq!(sums.len(), squares.len());
        squares.norm(&sums)
    }

    fn assert_close(actual: f64, expected: f64) {
        let error = (actual / expected - 1.0).abs();
        assert!(error < 1e-6, "{actual:e} is not {expected:e}");
    }

    /// What a device without f64 (wgpu) does, run here on a device that has it.
    #[test]
    fn norms_summed_in_f32_neither_overflow_nor_vanish() {
        use FloatDType::F32;

        assert_eq!(norm(&[3.0, 4.0], F32, F32), 5.0);
        assert_close(norm(&[3e25, 4e25], F32, F32), 5e25);
        assert_close(norm(&[3e38, 0.0], F32, F32), 3e38);
        assert_close(norm(&[3e-25, 4e-25], F32, F32), 5e-25);
        assert_close(norm(&[3e-37, 4e-37], F32, F32), 5e-37);
        assert_close(norm(&[1.0, 1e-30], F32, F32), 1.0);
        assert_eq!(norm(&[0.0, 0.0], F32, F32), 0.0);
    }

    #[test]
    fn norms_of_f32_summed_in_f64_neither_overflow_nor_vanish() {
        use FloatDType::{F32, F64};

        assert_eq!(norm(&[3.0, 4.0], F32, F64), 5.0);
        assert_close(norm(&[3e38, 3e38], F32, F64), 2f64.sqrt() * 3e38);
        assert_close(norm(&[3e-37, 4e-37], F32, F64), 5e-37);
    }

    #[test]
    fn norms_of_f64_neither_overflow_nor_vanish() {
        use FloatDType::F64;

        assert_eq!(norm(&[3.0, 4.0], F64, F64), 5.0);
        assert_close(norm(&[3e250, 4e250], F64, F64), 5e250);
        assert_close(norm(&[3e-250, 4e-250], F64, F64), 5e-250);
    }

    #[test]
    fn nan_and_infinity_stay_what_they_are_in_every_format() {
        use FloatDType::{F16, F32, F64};

        for (gradient, sum_in) in [(F16, F32), (F16, F64), (F32, F32), (F32, F64), (F64, F64)] {
            assert!(norm(&[1.0, f64::NAN], gradient, sum_in).is_nan());
            assert!(norm(&[f64::INFINITY, f64::NAN], gradient, sum_in).is_nan());
            let infinite = norm(&[f64::NEG_INFINITY, f64::INFINITY], gradient, sum_in);
            assert_eq!(infinite, f64::INFINITY);
        }
    }

    #[test]
    fn norms_of_norms_neither_overflow_nor_vanish() {
        let of = |norms: &[f64]| norm_of(norms.iter().copied());

        assert_eq!(of(&[]), 0.0);
        assert_eq!(of(&[2.0, 3.0, 6.0]), 7.0);
        assert_close(of(&[3e250, 4e250]), 5e250);
        assert_close(of(&[3e-250, 4e-250]), 5e-250);
        assert!(of(&[1.0, f64::NAN]).is_nan());
        assert_eq!(of(&[1.0, f64::INFINITY]), f64::INFINITY);
    }
}
