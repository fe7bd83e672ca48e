//! Means with their intervals.

use std::f64::consts::{FRAC_PI_2, PI};

use serde::Serialize;

/// A mean of a few values, and where the mean of all that might have been drawn lies.
///
/// The interval is Student's: `mean ± t s / sqrt(n)`, with the standard deviation `s` of the `n`
/// values and the 0.975 quantile `t` of Student's distribution with `n - 1` degrees of freedom. It
/// holds the true mean in 95 of 100 cases if the values are independent and about normal. With two
/// values it is wide (`t` is 12.7) and with one there is none: so little can be known.
///
/// # Example
///
/// ```
/// use gradnorm::Estimate;
///
/// let estimate = Estimate::mean(&[1.0, 2.0, 6.0]).unwrap();
/// assert_eq!((estimate.mean, estimate.median), (3.0, 2.0));
/// let [low, high] = estimate.interval.unwrap();
/// assert!((low + 3.572).abs() < 1e-3 && (high - 9.572).abs() < 1e-3);
/// assert_eq!(Estimate::mean(&[1.0]).unwrap().interval, None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Estimate {
    /// The mean; of ratios, the geometric one.
    pub mean: f64,
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The 95 % interval of the mean; `None` for a single value, or if a value is not finite.
    pub interval: Option<[f64; 2]>,
}

impl Estimate {
    /// Of the arithmetic mean; `None` if there are no values.
    pub fn mean(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let interval = (values.len() > 1 && squares.is_finite()).then(|| {
            let half = t_975(values.len() - 1) * (squares / (n - 1.0) / n).sqrt();
            [mean - half, mean + half]
        });
        Some(Self {
            mean,
            median: median(values),
            interval,
        })
    }

    /// Of the geometric mean, which a ratio of 2 and one of 1/2 bring to 1: that of the logarithms,
    /// taken back. `None` if there are no values, or one is not positive and finite.
    pub fn geometric_mean(values: &[f64]) -> Option<Self> {
        if !values.iter().all(|value| *value > 0.0 && value.is_finite()) {
            return None;
        }
        let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        let estimate = Self::mean(&logarithms)?;
        Some(Self {
            mean: estimate.mean.exp(),
            median: median(values),
            interval: estimate.interval.map(|interval| interval.map(f64::exp)),
        })
    }
}

/// NaN if one of them is.
fn median(values: &[f64]) -> f64 {
    if values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// The 0.975 quantile of Student's t distribution.
fn t_975(degrees: usize) -> f64 {
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    // As many halvings as a float has digits.
    for _ in 0..f64::MANTISSA_DIGITS {
        let middle = (low + high) / 2.0;
        match share_within(middle, degrees) < 0.95 {
            true => low = middle,
            false => high = middle,
        }
    }
    (degrees as f64).sqrt() * low.tan()
}

/// The probability that `|t| < sqrt(degrees) tan(angle)`: for whole degrees of freedom a finite sum
/// (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
fn share_within(angle: f64, degrees: usize) -> f64 {
    let (sin, cos) = angle.sin_cos();
    let odd = degrees % 2 == 1;
    let mut term = if odd { cos } else { 1.0 };
    let mut sum = 0.0;
    for k in 1..=degrees / 2 {
        sum += term;
        let k = k as f64;
        let factor = match odd {
            true => 2.0 * k / (2.0 * k + 1.0),
            false => (2.0 * k - 1.0) / (2.0 * k),
        };
        term *= factor * cos * cos;
    }
    match odd {
        true => (angle + sin * sum) * 2.0 / PI,
        false => sin * sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        // NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, two-sided 95 %.
        for (degrees, t) in [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (4, 2.776),
            (5, 2.571),
            (9, 2.262),
            (10, 2.228),
            (29, 2.045),
            (30, 2.042),
            (100, 1.984),
        ] {
            assert!((t_975(degrees) - t).abs() < 5e-4, "{degrees}");
        }
        // With one and two degrees of freedom the distribution can be inverted by hand.
        let by_hand = (FRAC_PI_2 * 0.95).tan();
        assert!((t_975(1) / by_hand - 1.0).abs() < 1e-12);
        let by_hand = 0.95 * (2.0 / (1.0 - 0.95_f64.powi(2))).sqrt();
        assert!((t_975(2) / by_hand - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_geometric_mean_is_that_of_factors() {
        let estimate = Estimate::geometric_mean(&[0.5, 2.0, 1.0]).unwrap();
        assert!((estimate.mean - 1.0).abs() < 1e-12);
        assert_eq!(estimate.median, 1.0);
        let [low, high] = estimate.interval.unwrap();
        assert!((low * high - 1.0).abs() < 1e-12);
        // ln 2 as the standard deviation of the logarithms.
        let half = t_975(2) * 2.0_f64.ln() / 3.0_f64.sqrt();
        assert!((high - half.exp()).abs() < 1e-9);
        for none in [
            &[1.0, 0.0][..],
            &[1.0, -1.0],
            &[f64::INFINITY],
            &[f64::NAN],
            &[],
        ] {
            assert_eq!(Estimate::geometric_mean(none), None, "{none:?}");
        }
    }

    #[test]
    fn values_that_are_not_finite_give_no_interval() {
        let estimate = Estimate::mean(&[1.0, f64::NAN]).unwrap();
        assert!(estimate.mean.is_nan() && estimate.median.is_nan());
        assert_eq!(estimate.interval, None);
        let estimate = Estimate::mean(&[1.0, 2.0, f64::INFINITY]).unwrap();
        assert_eq!((estimate.mean, estimate.median), (f64::INFINITY, 2.0));
        assert_eq!(estimate.interval, None);
        assert_eq!(Estimate::mean(&[]), None);
        let equal = Estimate::mean(&[3.0, 3.0]).unwrap();
        assert_eq!(equal.interval, Some([3.0, 3.0]));
    }
}
