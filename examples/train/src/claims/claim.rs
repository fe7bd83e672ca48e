//! A claim with what was measured of it.

use serde::Serialize;

use super::verdict::{Part, Verdict, judge};
use crate::summary::{Measured, Spread};

/// One row of `claims.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// Its number, from 1 to 11.
    pub id: u8,
    /// What is claimed.
    pub sentence: &'static str,
    /// What was measured.
    pub figures: Vec<Figure>,
    /// What the figures make of it.
    pub verdict: Verdict,
    /// Under which condition it holds, or in what it does not.
    pub condition: Option<String>,
    /// What is the case instead, or beside it, in words made from the figures.
    pub finding: String,
    /// When a claim of this kind holds: what decided, and its thresholds.
    pub rule: &'static str,
}

/// A quantity over the seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What it is, and where.
    pub name: String,
    /// Its values, median and extremes.
    #[serde(flatten)]
    pub spread: Spread,
    /// Whether it stands in the tables; all are in `claims.json`.
    #[serde(skip)]
    pub shown: bool,
}

impl Claim {
    /// With the verdict of its parts.
    pub(super) fn judged(
        id: u8,
        sentence: &'static str,
        rule: &'static str,
        figures: Vec<Figure>,
        parts: &[Part],
        finding: String,
    ) -> Self {
        let (verdict, condition) = judge(parts);
        Self {
            id,
            sentence,
            figures,
            verdict,
            condition,
            finding,
            rule,
        }
    }
}

impl Figure {
    /// One of those that a reader should see.
    pub(super) fn shown(name: impl Into<String>, spread: Spread) -> Self {
        Self {
            name: name.into(),
            spread,
            shown: true,
        }
    }

    /// One that stands in the files alone.
    pub(super) fn kept(name: impl Into<String>, spread: Spread) -> Self {
        Self {
            shown: false,
            ..Self::shown(name, spread)
        }
    }
}

/// Numbers that are known, one a seed.
pub(super) fn spread(values: impl IntoIterator<Item = f64>) -> Spread {
    let measured = |value: f64| value.is_finite().then_some(Measured { value, more: false });
    Spread {
        values: values.into_iter().map(measured).collect(),
    }
}

/// Steps at which something was reached, or more than all that were taken.
pub(super) fn steps(values: impl IntoIterator<Item = (Option<u64>, u64)>) -> Spread {
    let measured = |(at, taken): (Option<u64>, u64)| {
        Some(Measured {
            value: at.unwrap_or(taken) as f64,
            more: at.is_none(),
        })
    };
    Spread {
        values: values.into_iter().map(measured).collect(),
    }
}

/// The least-squares slope of `ln y` against `ln x`: the exponent of a power law.
pub(super) fn exponent(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let logs = || points.iter().map(|(x, y)| (x.ln(), y.ln()));
    let mean_x = logs().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = logs().map(|(_, y)| y).sum::<f64>() / count;
    let covariance: f64 = logs().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = logs().map(|(x, _)| (x - mean_x).powi(2)).sum();
    covariance / variance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exponent_is_that_of_the_power_law_through_the_points() {
        let points =
            |exponent: f64| [1.0f64, 4.0, 64.0, 512.0].map(|x| (x, 3.0 * x.powf(exponent)));
        for expected in [0.5, -1.0, 0.0] {
            assert!((exponent(&points(expected)) - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn steps_that_were_never_reached_are_bounds() {
        let spread = steps([(Some(40), 100), (None, 600)]);
        assert_eq!(spread.median().unwrap().value, 320.0);
        assert!(spread.median().unwrap().more);
        assert_eq!(spread.above(599.0), 1);
    }

    #[test]
    fn a_figure_is_written_with_its_interval() {
        let figure = Figure::shown("score std at d 64", spread([8.0, 7.0, f64::NAN]));
        let json = serde_json::to_value(figure).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "name": "score std at d 64",
                "median": null,
                "min": null,
                "max": null,
                "values": [8.0, 7.0, null],
            })
        );
        let figure = Figure::kept("x", spread([2.0, 1.0, 4.0]));
        let json = serde_json::to_value(figure).unwrap();
        assert_eq!(
            (&json["median"], &json["min"], &json["max"]),
            (&2.0.into(), &1.0.into(), &4.0.into())
        );
    }
}
