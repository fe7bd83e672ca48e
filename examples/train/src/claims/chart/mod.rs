//! Charts as numbers, which become plots in a browser, SVG and CSV.

mod csv;
mod plotly;
mod svg;

pub(super) use plotly::plot;
pub(super) use svg::svg;

use crate::plot::MOST_DECADES;
use crate::summary::Spread;

/// One chart; its `id` is its files' name.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub id: String,
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Lines(Vec<Series>),
    Cells(Cells),
}

/// What an axis shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Axis {
    pub label: String,
    pub log: bool,
    /// Where the ticks are and what they say; `None` leaves that to the plot.
    pub ticks: Option<Vec<(f64, String)>>,
    /// The ends; `None` fits them to the numbers.
    pub range: Option<(f64, f64)>,
}

/// A line, and what is about it.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub name: String,
    /// What the legend calls it where its colour says the rest.
    pub legend: Option<String>,
    pub color: Hue,
    pub style: Style,
    pub points: Vec<At>,
}

/// A number and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct At {
    pub x: f64,
    pub y: f64,
    /// The same as `y` where there is no interval.
    pub low: f64,
    pub high: f64,
    /// Whether `y` is a bound that the number is above.
    pub more: bool,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// A thick line in a band, for many points.
    Band,
    /// Marks on a line, with bars, for a few points.
    Bars,
    /// The same, dashed.
    DashedBars,
    /// A thin line: one run.
    Run,
    /// A dotted line without marks: what is expected.
    Theory,
}

/// Of Okabe and Ito's palette, which colour-blind eyes tell apart, the blue and the grey such that they
/// stand out on white and on black.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hue {
    Blue,
    Vermilion,
    Green,
    Purple,
    Grey,
}

/// Shares between 0 and 1, row by row from the top.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    pub columns: Vec<String>,
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

impl Hue {
    pub fn rgb(self) -> (u8, u8, u8) {
        match self {
            Self::Blue => (47, 135, 214),
            Self::Vermilion => (213, 94, 0),
            Self::Green => (0, 158, 115),
            Self::Purple => (204, 121, 167),
            Self::Grey => (128, 128, 128),
        }
    }
}

impl Chart {
    pub fn lines(
        id: impl Into<String>,
        title: impl Into<String>,
        x: Axis,
        y: Axis,
        lines: Vec<Series>,
    ) -> Self {
        Self {
            id: id.into(),
            title: title.into(),
            x,
            y,
            content: Content::Lines(lines),
        }
    }

    /// What a logarithmic axis shows instead of smaller numbers, 0 included.
    fn floor(&self) -> Option<f64> {
        let Content::Lines(lines) = &self.content else {
            return None;
        };
        let numbers = lines.iter().flat_map(|line| &line.points);
        let largest = numbers
            .map(|at| at.high)
            .filter(|y| y.is_finite())
            .fold(0.0, f64::max);
        self.y.log.then(|| largest * 10f64.powf(-MOST_DECADES))
    }
}

impl Axis {
    pub fn linear(label: &str) -> Self {
        Self {
            label: label.to_string(),
            ..Self::default()
        }
    }

    pub fn log(label: &str) -> Self {
        Self {
            log: true,
            ..Self::linear(label)
        }
    }

    pub fn from_to(label: &str, low: f64, high: f64) -> Self {
        Self {
            range: Some((low, high)),
            ..Self::linear(label)
        }
    }

    /// Logarithmic, with a tick at each of these numbers.
    pub fn sizes(label: &str, sizes: impl IntoIterator<Item = f64>) -> Self {
        let ticks = sizes.into_iter().map(|size| (size, size.to_string()));
        Self {
            ticks: Some(ticks.collect()),
            ..Self::log(label)
        }
    }

    /// Names, at 0, 1, 2 and so on.
    pub fn names(label: &str, names: impl IntoIterator<Item = String>) -> Self {
        let ticks: Vec<_> = names
            .into_iter()
            .enumerate()
            .map(|(at, name)| (at as f64, name))
            .collect();
        Self {
            range: Some((-0.5, ticks.len() as f64 - 0.5)),
            ticks: Some(ticks),
            ..Self::linear(label)
        }
    }
}

impl At {
    /// A number without an interval.
    pub fn exact(x: f64, y: f64) -> Self {
        Self {
            x,
            y,
            low: y,
            high: y,
            more: false,
        }
    }

    /// A median and its range, if they are known.
    pub fn of(x: f64, spread: &Spread) -> Option<Self> {
        let (median, (min, max)) = (spread.median()?, spread.range()?);
        Some(Self {
            x,
            y: median.value,
            low: min.value,
            high: max.value,
            more: median.more,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_has_a_floor_that_zero_lies_on() {
        let line = |y| {
            let points = vec![At::exact(1.0, 0.0), At::exact(2.0, 5.0)];
            let series = Series {
                name: "a".to_string(),
                legend: None,
                color: Hue::Blue,
                style: Style::Run,
                points,
            };
            Chart::lines("a", "a", Axis::linear("x"), y, vec![series])
        };
        let floor = line(Axis::log("y")).floor().unwrap();
        assert!((floor / 5e-7 - 1.0).abs() < 1e-12, "{floor}");
        assert_eq!(line(Axis::linear("y")).floor(), None);
    }
}
