//! Panels side by side under one legend.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, Fitted};
use super::series::{Arm, Arms, At, Points, median};
use crate::Error;
use crate::training::Run;

const PANEL: (u32, u32) = (400, 280);
const LEGEND: u32 = 36;
const LEGEND_WIDTH: i32 = 360;
const TITLE: u32 = 26;
const FONT: &str = "sans-serif";

/// A grid of panels.
pub(super) struct Figure {
    pub columns: usize,
    /// What lines, bars and bands are.
    pub note: String,
    pub panels: Vec<Panel>,
}

/// One chart.
pub(super) struct Panel {
    title: String,
    x_label: String,
    y_label: String,
    x: Axis,
    y: Axis,
    /// The height of a horizontal line.
    pub rule: Option<f64>,
    bands: Vec<(Arm, Points, Points)>,
    runs: Vec<(Arm, Points)>,
    medians: Vec<(Arm, Points)>,
    spreads: Vec<(Arm, Vec<At>)>,
}

type Area<'a, 'b> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<Fitted, Fitted>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

impl Arm {
    /// Blue and vermilion of Okabe and Ito's palette, which stay apart for colour-blind eyes.
    fn color(self) -> RGBColor {
        match self {
            Self::Scaled => RGBColor(0, 114, 178),
            Self::Unscaled => RGBColor(213, 94, 0),
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Scaled => "scaled by 1/√d_k",
            Self::Unscaled => "unscaled",
        }
    }
}

impl Panel {
    pub fn new(title: &str, x_label: &str, y_label: &str, x: Axis, y: Axis) -> Self {
        Self {
            title: title.to_string(),
            x_label: x_label.to_string(),
            y_label: y_label.to_string(),
            x,
            y,
            rule: None,
            bands: Vec::new(),
            runs: Vec::new(),
            medians: Vec::new(),
            spreads: Vec::new(),
        }
    }

    /// A thin line for each run, and a thick one for their median as far as all runs go.
    pub fn add_arms(&mut self, arms: &Arms, line: impl Fn(&Run) -> Points) {
        for (arm, runs) in arms.each() {
            let lines: Vec<Points> = runs.iter().map(|run| line(run)).collect();
            self.medians.push((arm, median(&lines)));
            self.runs.extend(lines.into_iter().map(|line| (arm, line)));
        }
    }

    /// The area between two lines, each a median over the runs.
    pub fn add_band(
        &mut self,
        arms: &Arms,
        low: impl Fn(&Run) -> Points,
        high: impl Fn(&Run) -> Points,
    ) {
        for (arm, runs) in arms.each() {
            let lows: Vec<Points> = runs.iter().map(|run| low(run)).collect();
            let highs: Vec<Points> = runs.iter().map(|run| high(run)).collect();
            self.bands.push((arm, median(&lows), median(&highs)));
        }
    }

    /// Medians as marks on a line, and the extremes as bars through them.
    pub fn add_spread(&mut self, arm: Arm, spread: Vec<At>) {
        self.spreads.push((arm, spread));
    }

    fn draw(&self, area: &Area) -> Drawn {
        let (x, y) = self.fitted();
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 15))
            .margin_left(8)
            .margin_right(18)
            .margin_top(4)
            .x_label_area_size(44)
            .y_label_area_size(62)
            .build_cartesian_2d(x.clone(), y.clone())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(BLACK.mix(0.12))
            .light_line_style(TRANSPARENT)
            .axis_style(BLACK.mix(0.5))
            .label_style((FONT, 13))
            .axis_desc_style((FONT, 13))
            .x_labels(x.ticks.len())
            .y_labels(y.ticks.len())
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .draw()?;
        if let Some(rule) = self.rule {
            let ends = [x.range().start, x.range().end].map(|end| (end, rule));
            chart.draw_series(LineSeries::new(ends, BLACK.mix(0.45)))?;
        }
        for (arm, low, high) in &self.bands {
            let outline: Points = high.iter().chain(low.iter().rev()).copied().collect();
            let fill = arm.color().mix(0.16).filled();
            chart.draw_series(std::iter::once(Polygon::new(outline, fill)))?;
        }
        for (arm, line) in &self.runs {
            chart.draw_series(LineSeries::new(line.clone(), arm.color().mix(0.35)))?;
        }
        for (arm, line) in &self.medians {
            let style = arm.color().stroke_width(2);
            chart.draw_series(LineSeries::new(line.clone(), style))?;
        }
        for (arm, spread) in &self.spreads {
            let medians: Points = spread.iter().map(|at| (at.x, at.median)).collect();
            let style = arm.color().stroke_width(2);
            chart.draw_series(LineSeries::new(medians, style))?;
            for at in spread {
                let bar = [(at.x, at.min), (at.x, at.max)];
                chart.draw_series(LineSeries::new(bar, style))?;
                mark(&mut chart, *arm, (at.x, at.median))?;
            }
        }
        Ok(())
    }

    fn fitted(&self) -> (Fitted, Fitted) {
        let lines = self.runs.iter().map(|(_, line)| line);
        let bands = self.bands.iter().flat_map(|(_, low, high)| [low, high]);
        let points: Points = lines.chain(bands).flatten().copied().collect();
        let spreads = self.spreads.iter().flat_map(|(_, spread)| spread);
        let ends = spreads.flat_map(|at| [(at.x, at.min), (at.x, at.max)]);
        let all: Points = points.into_iter().chain(ends).collect();
        (
            self.x.fit(all.iter().map(|point| point.0)),
            self.y.fit(all.iter().map(|point| point.1)),
        )
    }
}

/// A disc for one arm, a triangle for the other: they are told apart without colour too.
fn mark(chart: &mut Chart, arm: Arm, at: (f64, f64)) -> Drawn {
    let style = arm.color().filled();
    match arm {
        Arm::Scaled => chart.draw_series([Circle::new(at, 5, style)])?,
        Arm::Unscaled => chart.draw_series([TriangleMarker::new(at, 6, style)])?,
    };
    Ok(())
}

impl Figure {
    /// Writes the figure into a file.
    pub fn draw(&self, path: &Path) -> Result<(), Error> {
        let rows = self.panels.len().div_ceil(self.columns.max(1)) as u32;
        let size = (
            PANEL.0 * self.columns.max(1) as u32,
            (PANEL.1 + TITLE) * rows.max(1) + LEGEND,
        );
        let root = SVGBackend::new(path, size).into_drawing_area();
        self.draw_on(&root).map_err(|why| Error::Plot {
            path: path.into(),
            why: why.to_string(),
        })
    }

    fn draw_on(&self, root: &Area) -> Drawn {
        root.fill(&WHITE)?;
        let (legend, grid) = root.split_vertically(LEGEND);
        draw_legend(&legend, &self.note)?;
        let columns = self.columns.max(1);
        let cells = grid.split_evenly((self.panels.len().div_ceil(columns).max(1), columns));
        for (panel, cell) in self.panels.iter().zip(&cells) {
            panel.draw(cell)?;
        }
        root.present()
    }
}

fn draw_legend(area: &Area, note: &str) -> Drawn {
    let middle = LEGEND as i32 / 2;
    for (arm, left) in [(Arm::Scaled, 62), (Arm::Unscaled, 240)] {
        let line = vec![(left, middle), (left + 30, middle)];
        area.draw(&PathElement::new(line, arm.color().stroke_width(2)))?;
        let (style, at) = (arm.color().filled(), (left + 15, middle));
        match arm {
            Arm::Scaled => area.draw(&Circle::new(at, 5, style))?,
            Arm::Unscaled => area.draw(&TriangleMarker::new(at, 6, style))?,
        }
        let left_middle = Pos::new(HPos::Left, VPos::Center);
        let style = (FONT, 15).into_text_style(area).pos(left_middle);
        area.draw(&Text::new(arm.label(), (left + 38, middle), style))?;
    }
    let grey = BLACK.mix(0.7);
    let style = (FONT, 13).into_text_style(area).color(&grey);
    let left_middle = Pos::new(HPos::Left, VPos::Center);
    area.draw(&Text::new(
        note,
        (LEGEND_WIDTH, middle),
        style.pos(left_middle),
    ))
}
