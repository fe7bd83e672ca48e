//! Comparison that says how far off the worst number is, and where.

use std::fmt;

/// How far a number may be from the expected one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Whatever the number.
    pub absolute: f64,
    /// And this part of the expected number's magnitude.
    pub relative: f64,
    /// And one unit in the last place of the expected number, in the element type of this epsilon.
    pub epsilon: f64,
}

impl Tolerance {
    /// An absolute bound.
    pub const fn absolute(absolute: f64) -> Self {
        Self::new(absolute, 0.0)
    }

    /// A relative bound.
    pub const fn relative(relative: f64) -> Self {
        Self::new(0.0, relative)
    }

    /// An absolute and a relative bound, added up.
    pub const fn new(absolute: f64, relative: f64) -> Self {
        Self {
            absolute,
            relative,
            epsilon: 0.0,
        }
    }

    /// With one unit in the last place of an element type on top: two computations that are both
    /// right may round to neighbours.
    pub const fn or_neighbour(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    fn at(self, expected: f64) -> f64 {
        let magnitude = expected.abs();
        let unit = match magnitude > 0.0 {
            true => self.epsilon * magnitude.log2().floor().exp2(),
            false => 0.0,
        };
        self.absolute + self.relative * magnitude + unit
    }
}

/// The number that is furthest beyond its tolerance.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its place along each axis.
    pub place: Vec<usize>,
    /// What was found there.
    pub found: f64,
    /// What should be there.
    pub expected: f64,
    /// By how much it may differ.
    pub allowed: f64,
    /// How many numbers are beyond their tolerance.
    pub wrong: usize,
    /// Of how many.
    pub total: usize,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            place,
            found,
            expected,
            allowed,
            wrong,
            total,
        } = self;
        let error = (found - expected).abs();
        write!(
            f,
            "{wrong} of {total} differ, worst at {place:?}: {found} instead of {expected}, off by \
             {error:.3e} where {allowed:.3e} is allowed"
        )
    }
}

/// Compares numbers in row-major order with the expected ones; NaN equals nothing.
///
/// # Errors
///
/// The worst difference, if any is beyond the tolerance.
///
/// # Panics
///
/// If there are not as many numbers as the shape and the expectation have.
pub fn compare(
    found: &[f64],
    expected: &[f64],
    shape: &[usize],
    tolerance: Tolerance,
) -> Result<(), Difference> {
    assert_eq!(found.len(), expected.len(), "numbers found and expected");
    assert_eq!(found.len(), shape.iter().product::<usize>(), "{shape:?}");
    let mut wrong = 0;
    let mut worst: Option<(f64, usize)> = None;
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let excess = match found == expected {
            true => 0.0,
            // An infinity that is off, or a NaN, is further off than any number.
            false if !(found - expected).is_finite() => f64::INFINITY,
            false => (found - expected).abs() / tolerance.at(expected),
        };
        if excess > 1.0 {
            wrong += 1;
            if worst.is_none_or(|(other, _)| excess > other) {
                worst = Some((excess, index));
            }
        }
    }
    match worst {
        None => Ok(()),
        Some((_, index)) => Err(Difference {
            place: unravel(index, shape),
            found: found[index],
            expected: expected[index],
            allowed: tolerance.at(expected[index]),
            wrong,
            total: found.len(),
        }),
    }
}

fn unravel(mut index: usize, shape: &[usize]) -> Vec<usize> {
    let mut place = vec![0; shape.len()];
    for (axis, size) in shape.iter().enumerate().rev() {
        place[axis] = index % size;
        index /= size;
    }
    place
}

/// Fails with the worst difference.
///
/// # Panics
///
/// If any number is beyond the tolerance.
#[track_caller]
pub fn assert_close(
    name: &str,
    found: &[f64],
    expected: &[f64],
    shape: &[usize],
    tolerance: Tolerance,
) {
    if let Err(difference) = compare(found, expected, shape, tolerance) {
        panic!("{name}: {difference}");
    }
}

/// Fails unless all numbers are the same to the last bit.
///
/// # Panics
///
/// If any is not.
#[track_caller]
pub fn assert_bits(name: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(
        found.len(),
        expected.len(),
        "{name}: numbers found and expected"
    );
    let different = found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found.to_bits() != expected.to_bits());
    if let Some(index) = different {
        panic!(
            "{name}: {} instead of {} at {index} of {}",
            found[index],
            expected[index],
            found.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_number_is_named_with_its_place() {
        let found = [1.0, 2.0, 3.0, 4.5, 5.1, 6.0];
        let expected = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let error = compare(&found, &expected, &[2, 3], Tolerance::absolute(0.01)).unwrap_err();
        assert_eq!(error.place, [1, 0]);
        assert_eq!(error.wrong, 2);
        assert_eq!(
            error.to_string(),
            "2 of 6 differ, worst at [1, 0]: 4.5 instead of 4, off by 5.000e-1 where 1.000e-2 is \
             allowed"
        );
    }

    #[test]
    fn nan_and_the_wrong_infinity_are_never_close() {
        let wide = Tolerance::new(1e9, 1e9);
        for (found, expected) in [
            (f64::NAN, f64::NAN),
            (f64::NAN, 0.0),
            (f64::NEG_INFINITY, 0.0),
            (f64::NEG_INFINITY, f64::INFINITY),
            (0.0, f64::NEG_INFINITY),
        ] {
            assert!(compare(&[found], &[expected], &[1], wide).is_err());
        }
        let infinity = [f64::NEG_INFINITY];
        assert!(compare(&infinity, &infinity, &[1], Tolerance::absolute(0.0)).is_ok());
    }
}
