//! Where numbers lie on an axis, and where its ticks are.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// A linear or a logarithmic axis.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    log: bool,
    bounds: Option<(f64, f64)>,
    ticks: Option<Vec<f64>>,
}

/// An axis that has met its numbers: a coordinate of a chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fitted {
    log: bool,
    low: f64,
    high: f64,
    pub ticks: Vec<f64>,
}

/// A logarithmic axis shows at most this many decades below its largest number.
pub(crate) const MOST_DECADES: f64 = 7.0;

impl Axis {
    /// From 0 to the largest number.
    pub fn linear() -> Self {
        Self {
            log: false,
            bounds: None,
            ticks: None,
        }
    }

    /// Linear with given ends.
    pub fn from_to(start: f64, end: f64) -> Self {
        Self {
            bounds: Some((start, end)),
            ..Self::linear()
        }
    }

    /// By decades.
    pub fn log() -> Self {
        Self {
            log: true,
            ..Self::linear()
        }
    }

    /// Logarithmic, with ticks at these numbers.
    pub fn log_at(numbers: impl Iterator<Item = f64>) -> Self {
        Self::log().with_ticks(numbers)
    }

    /// The same with ticks at these numbers.
    pub fn with_ticks(self, numbers: impl Iterator<Item = f64>) -> Self {
        Self {
            ticks: Some(numbers.collect()),
            ..self
        }
    }

    /// The axis for these numbers.
    pub fn fit(&self, numbers: impl Iterator<Item = f64>) -> Fitted {
        let shown = |number: &f64| number.is_finite() && (!self.log || *number > 0.0);
        let (low, high) = numbers
            .filter(shown)
            .map(|number| if self.log { number.log10() } else { number })
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| {
                (low.min(number), high.max(number))
            });
        let (low, high) = match (self.bounds, low <= high) {
            (Some(bounds), _) => bounds,
            (None, false) => (0.0, 1.0),
            (None, true) if self.log => {
                let low = low.max(high - MOST_DECADES);
                let margin = 0.05 * (high - low).max(0.5);
                (low - margin, high + margin)
            }
            (None, true) => (low.min(0.0), if high > 0.0 { 1.02 * high } else { 1.0 }),
        };
        let ticks = match &self.ticks {
            Some(ticks) => ticks.clone(),
            None if self.log => decades(low, high),
            None => round_numbers(low, high),
        };
        Fitted {
            log: self.log,
            low,
            high,
            ticks,
        }
    }
}

impl Fitted {
    /// How far along the axis a number is, from 0 to 1; at the edge if it is outside.
    fn share(&self, number: f64) -> f64 {
        let place = match self.log {
            true if number > 0.0 => number.log10(),
            true => self.low,
            false => number,
        };
        ((place - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

impl Ranged for Fitted {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let span = f64::from(limit.1 - limit.0);
        limit.0 + (self.share(*value) * span).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        match self.log {
            true => 10f64.powf(self.low)..10f64.powf(self.high),
            false => self.low..self.high,
        }
    }
}

impl ValueFormatter<f64> for Fitted {
    /// Without the rounding errors of its making.
    fn format(tick: &f64) -> String {
        let rounded: f64 = format!("{tick:.6e}").parse().unwrap_or(*tick);
        match rounded == 0.0 || (1e-4..1e5).contains(&rounded.abs()) {
            true => rounded.to_string(),
            false => format!("{rounded:e}"),
        }
    }
}

/// Powers of ten; multiples of them too, or every second one only, so that there are a few.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let (every, multiples): (i32, &[f64]) = match high - low {
        span if span > 5.0 => (2, &[1.0]),
        span if span > 1.9 => (1, &[1.0]),
        span if span > 1.3 => (1, &[1.0, 3.0]),
        _ => (1, &[1.0, 2.0, 5.0]),
    };
    let exponents = low.floor() as i32..=high.ceil() as i32;
    exponents
        .filter(|exponent| exponent % every == 0)
        .flat_map(|exponent| multiples.iter().map(move |m| m * 10f64.powi(exponent)))
        .filter(|tick| (low..=high).contains(&tick.log10()))
        .collect()
}

/// About five multiples of 1, 2 or 5 times a power of ten.
fn round_numbers(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|multiple| multiple * power);
    let step = steps
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last)
        .map(|multiple| multiple as f64 * step)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Fitted) -> Vec<String> {
        axis.ticks.iter().map(Fitted::format).collect()
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_ticks() {
        let axis = Axis::linear().fit([120.0, 470.0].into_iter());
        assert_eq!(axis.range().start, 0.0);
        assert!(axis.range().end > 470.0);
        assert_eq!(labels(&axis), ["0", "100", "200", "300", "400"]);
        let unit = Axis::from_to(0.0, 1.0).fit([0.3].into_iter());
        assert_eq!(labels(&unit), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
    }

    #[test]
    fn a_logarithmic_axis_has_ticks_at_powers_of_ten_and_zero_at_its_edge() {
        let axis = Axis::log().fit([0.0, 0.002, 3.0].into_iter());
        assert_eq!(labels(&axis), ["0.01", "0.1", "1"]);
        assert_eq!(axis.map(&0.0, (100, 0)), 100);
        assert_eq!(axis.map(&1e9, (100, 0)), 0);
    }

    #[test]
    fn vanishing_numbers_do_not_squeeze_the_others() {
        let axis = Axis::log().fit([1e-38, 1.0].into_iter());
        assert!(axis.range().start > 1e-8);
        assert_eq!(axis.map(&1e-38, (0, 100)), 0);
    }

    #[test]
    fn sizes_are_ticks_themselves() {
        let axis = Axis::log_at([32.0, 256.0].into_iter()).fit([32.0, 256.0].into_iter());
        assert_eq!(labels(&axis), ["32", "256"]);
    }
}
