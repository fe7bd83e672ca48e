//! The numbers that plots show.

use layers::Scale;

use crate::summary::{Quantity, Row};
use crate::training::Run;

/// A side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    Scaled,
    Unscaled,
}

/// The runs of one size.
pub(super) struct Arms<'a> {
    pub d_k: usize,
    pub scaled: Vec<&'a Run>,
    pub unscaled: Vec<&'a Run>,
}

/// A quantity at one size: its median over the seeds, and its extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct At {
    pub x: f64,
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

pub(super) type Points = Vec<(f64, f64)>;

impl<'a> Arms<'a> {
    /// By ascending size.
    pub fn of(runs: &'a [Run]) -> Vec<Self> {
        let mut sizes: Vec<usize> = runs.iter().map(|run| run.config.d_k).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let arms = |d_k| {
            let (unscaled, scaled) = runs
                .iter()
                .filter(|run| run.config.d_k == d_k)
                .partition(|run| run.config.scale == Scale::Unscaled);
            Self {
                d_k,
                scaled,
                unscaled,
            }
        };
        sizes.into_iter().map(arms).collect()
    }

    pub fn each(&self) -> [(Arm, &[&'a Run]); 2] {
        [(Arm::Scaled, &self.scaled), (Arm::Unscaled, &self.unscaled)]
    }
}

/// The median of several lines, as far as all of them go.
pub(super) fn median(lines: &[Points]) -> Points {
    let Some(first) = lines.first() else {
        return Vec::new();
    };
    let at = |(place, (x, _)): (usize, &(f64, f64))| {
        let of_line = |line: &Points| line.get(place).filter(|point| point.0 == *x).map(|p| p.1);
        let mut all: Vec<f64> = lines.iter().map(of_line).collect::<Option<_>>()?;
        all.sort_by(f64::total_cmp);
        Some((*x, (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0))
    };
    first.iter().enumerate().map_while(at).collect()
}

/// One quantity of one arm at every size of the table; bounds are shown as numbers.
pub(super) fn by_size(rows: &[Row], quantity: Quantity, arm: Arm) -> Vec<At> {
    let at = |row: &Row| {
        let spread = match arm {
            Arm::Scaled => &row.scaled,
            Arm::Unscaled => &row.unscaled,
        };
        let (min, max) = spread.range()?;
        Some(At {
            x: row.d_k as f64,
            median: spread.median()?.value,
            min: min.value,
            max: max.value,
        })
    };
    let of_quantity = rows.iter().filter(|row| row.quantity == quantity);
    of_quantity.filter_map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_line_ends_where_the_first_run_ends() {
        let line = |values: &[f64]| -> Points {
            let points = values.iter().enumerate();
            points.map(|(x, y)| (x as f64, *y)).collect()
        };
        let lines = [
            line(&[1.0, 5.0]),
            line(&[2.0, 3.0, 9.0]),
            line(&[7.0, 4.0, 9.0]),
        ];
        assert_eq!(median(&lines), [(0.0, 2.0), (1.0, 4.0)]);
        assert_eq!(median(&[]), []);
    }
}
