//! Charts as SVG, side by side.

use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Cells, Chart, Content, Hue, Series, Style};
use crate::plot::{Axis as PlotAxis, Fitted};

const PANEL: (u32, u32) = (480, 320);
const TITLE: u32 = 26;
const LEGEND_LINE: u32 = 18;
const FONT: &str = "sans-serif";
/// About the width of a letter of the legend.
const LETTER: u32 = 7;
const SAMPLE: u32 = 28;

/// The colours of a cell of 0 and of 1.
pub(super) const LIGHT: (u8, u8, u8) = (236, 241, 247);
pub(super) const DARK: (u8, u8, u8) = (11, 79, 156);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type PlotContext<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<Fitted, Fitted>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// The charts in a grid, each under its title and its legend.
pub(in crate::claims) fn svg(charts: &[&Chart], columns: usize) -> String {
    let columns = columns.max(1) as u32;
    let rows = (charts.len() as u32).div_ceil(columns).max(1);
    let height = PANEL.1 + TITLE + legend_height(charts);
    let size = (PANEL.0 * columns, height * rows);
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
    let drawn = root.fill(&WHITE).and_then(|()| {
        let cells = root.split_evenly((rows as usize, columns as usize));
        charts
            .iter()
            .zip(&cells)
            .try_for_each(|(chart, cell)| draw(chart, cell))?;
        root.present()
    });
    drawn.expect("a string takes any drawing");
    drop(root);
    text
}

/// Of the tallest, so that the panels of a row are level.
fn legend_height(charts: &[&Chart]) -> u32 {
    let lines = charts.iter().map(|chart| legend(chart).len() as u32);
    LEGEND_LINE * lines.max().unwrap_or(0)
}

fn draw(chart: &Chart, area: &Area) -> Drawn {
    let (head, rest) = area.split_vertically(TITLE);
    let style = (FONT, 15)
        .into_text_style(area)
        .pos(Pos::new(HPos::Left, VPos::Center));
    head.draw(&Text::new(
        chart.title.clone(),
        (14, TITLE as i32 / 2),
        style,
    ))?;
    match &chart.content {
        Content::Lines(lines) => {
            let rows = legend(chart);
            let (top, plot) = rest.split_vertically(LEGEND_LINE * rows.len() as u32);
            draw_legend(&rows, &top)?;
            draw_lines(chart, lines, &plot)
        }
        Content::Cells(cells) => draw_cells(chart, cells, &rest),
    }
}

/// The lines of the legend: each entry with its place. Runs have none: the title says what is thin.
fn legend(chart: &Chart) -> Vec<Vec<(u32, &Series)>> {
    let Content::Lines(lines) = &chart.content else {
        return Vec::new();
    };
    let mut rows: Vec<Vec<(u32, &Series)>> = Vec::new();
    let mut left = PANEL.0;
    for line in lines.iter().filter(|line| line.style != Style::Run) {
        let width = SAMPLE + 14 + LETTER * line.name.chars().count() as u32;
        if left + width > PANEL.0 {
            rows.push(Vec::new());
            left = 14;
        }
        rows.last_mut().expect("one was begun").push((left, line));
        left += width;
    }
    rows
}

fn draw_legend(rows: &[Vec<(u32, &Series)>], area: &Area) -> Drawn {
    for (row, entries) in rows.iter().enumerate() {
        let middle = (LEGEND_LINE as usize * row + LEGEND_LINE as usize / 2) as i32;
        for (left, line) in entries {
            let (left, right) = (*left as i32, (left + SAMPLE) as i32);
            for (from, to) in dashes(line.style, left, right) {
                let style = color(line.color).stroke_width(2);
                area.draw(&PathElement::new(vec![(from, middle), (to, middle)], style))?;
            }
            if matches!(line.style, Style::Bars | Style::DashedBars) {
                let at = ((left + right) / 2, middle);
                draw_mark_on(area, line.color, at)?;
            }
            let style = (FONT, 12)
                .into_text_style(area)
                .pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(line.name.clone(), (right + 5, middle), style))?;
        }
    }
    Ok(())
}

fn dashes(style: Style, left: i32, right: i32) -> Vec<(i32, i32)> {
    let (on, off) = match style {
        Style::DashedBars => (6, 5),
        Style::Theory => (2, 4),
        Style::Band | Style::Bars | Style::Run => return vec![(left, right)],
    };
    let starts = (left..right).step_by((on + off) as usize);
    starts.map(|from| (from, (from + on).min(right))).collect()
}

fn draw_lines(chart: &Chart, lines: &[Series], area: &Area) -> Drawn {
    let points = || lines.iter().flat_map(|line| &line.points);
    let x = fit(&chart.x).fit(points().map(|at| at.x));
    let y = y_axis(chart);
    let mut plot = ChartBuilder::on(area)
        .margin_left(8)
        .margin_right(18)
        .margin_top(8)
        .x_label_area_size(44)
        .y_label_area_size(62)
        .build_cartesian_2d(x.clone(), y.clone())?;
    let named = chart.x.ticks.clone().unwrap_or_default();
    let name = |x: &f64| match named.iter().find(|(at, _)| at == x) {
        Some((_, name)) => name.clone(),
        None => <Fitted as plotters::coord::ranged1d::ValueFormatter<f64>>::format(x),
    };
    plot.configure_mesh()
        .disable_x_mesh()
        .bold_line_style(BLACK.mix(0.12))
        .light_line_style(TRANSPARENT)
        .axis_style(BLACK.mix(0.5))
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 13))
        .x_labels(x.ticks.len())
        .y_labels(y.ticks.len())
        .x_label_formatter(&name)
        .x_desc(&chart.x.label)
        .y_desc(&chart.y.label)
        .draw()?;
    let bottom = y.range().start;
    for line in lines {
        draw_line(&mut plot, line, bottom)?;
    }
    Ok(())
}

fn draw_line(plot: &mut PlotContext, line: &Series, bottom: f64) -> Drawn {
    // What cannot be shown is left out; what is too small lies at the foot.
    let shown = || line.points.iter().filter(|at| at.y.is_finite());
    let foot = |y: f64| if y.is_finite() { y.max(bottom) } else { bottom };
    let middle: Vec<(f64, f64)> = shown().map(|at| (at.x, foot(at.y))).collect();
    let stroke = color(line.color).stroke_width(2);
    match line.style {
        Style::Run => {
            plot.draw_series(LineSeries::new(middle, color(line.color).mix(0.35)))?;
        }
        Style::Theory => {
            plot.draw_series(DashedLineSeries::new(middle, 2, 4, stroke))?;
        }
        Style::Band => {
            let high = shown().map(|at| (at.x, foot(at.high)));
            let low = shown().rev().map(|at| (at.x, foot(at.low)));
            let outline: Vec<_> = high.chain(low).collect();
            let fill = color(line.color).mix(0.16).filled();
            plot.draw_series(std::iter::once(Polygon::new(outline, fill)))?;
            plot.draw_series(LineSeries::new(middle, stroke))?;
        }
        Style::Bars | Style::DashedBars => {
            for at in shown() {
                let bar = [(at.x, foot(at.low)), (at.x, foot(at.high))];
                plot.draw_series(LineSeries::new(bar, stroke))?;
                draw_mark(plot, line.color, (at.x, foot(at.y)))?;
            }
            match line.style {
                Style::Bars => plot.draw_series(LineSeries::new(middle, stroke))?,
                _ => plot.draw_series(DashedLineSeries::new(middle, 6, 5, stroke))?,
            };
        }
    }
    Ok(())
}

/// Told apart without colour too; no chart has green and grey marks.
fn draw_mark(plot: &mut PlotContext, of: Hue, at: (f64, f64)) -> Drawn {
    let style = color(of).filled();
    match of {
        Hue::Blue => plot.draw_series([Circle::new(at, 4, style)])?,
        Hue::Vermilion => plot.draw_series([TriangleMarker::new(at, 6, style)])?,
        Hue::Green | Hue::Grey => {
            plot.draw_series([Cross::new(at, 4, color(of).stroke_width(2))])?
        }
        Hue::Purple => plot.draw_series([Circle::new(at, 4, color(of).stroke_width(2))])?,
    };
    Ok(())
}

fn draw_mark_on(area: &Area, of: Hue, at: (i32, i32)) -> Drawn {
    let style = color(of).filled();
    match of {
        Hue::Blue => area.draw(&Circle::new(at, 4, style)),
        Hue::Vermilion => area.draw(&TriangleMarker::new(at, 6, style)),
        Hue::Green | Hue::Grey => area.draw(&Cross::new(at, 4, color(of).stroke_width(2))),
        Hue::Purple => area.draw(&Circle::new(at, 4, color(of).stroke_width(2))),
    }
}

fn draw_cells(chart: &Chart, cells: &Cells, area: &Area) -> Drawn {
    let (width, height) = area.dim_in_pixel();
    let (left, bottom) = (84, 58);
    let (rows, columns) = (
        cells.rows.len().max(1) as u32,
        cells.columns.len().max(1) as u32,
    );
    let size = ((width - left - 14) / columns, (height - bottom) / rows);
    let centre = |of: u32, size: u32| (of * size + size / 2) as i32;
    let text = |at| (FONT, 11).into_text_style(area).pos(at);
    for (row, (name, values)) in cells.rows.iter().enumerate() {
        let top = row as u32 * size.1;
        let style = text(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(
            name.clone(),
            (left as i32 - 8, centre(row as u32, size.1)),
            style,
        ))?;
        for (column, value) in values.iter().enumerate() {
            let from = (left + column as u32 * size.0, top);
            let to = (from.0 + size.0 - 1, from.1 + size.1 - 1);
            let corners = [from, to].map(|(x, y)| (x as i32, y as i32));
            area.draw(&Rectangle::new(corners, shade(*value).filled()))?;
        }
    }
    let below = (rows * size.1) as i32;
    for (column, name) in cells.columns.iter().enumerate() {
        let at = (left as i32 + centre(column as u32, size.0), below + 6);
        let style = text(Pos::new(HPos::Center, VPos::Top));
        area.draw(&Text::new(name.clone(), at, style))?;
    }
    let at = ((left + columns * size.0 / 2) as i32, below + 26);
    let style = (FONT, 13)
        .into_text_style(area)
        .pos(Pos::new(HPos::Center, VPos::Top));
    let label = format!(
        "{}; rows: {}; white 0, dark 1",
        chart.x.label, chart.y.label
    );
    area.draw(&Text::new(label, at, style))
}

/// Between the colours of 0 and of 1; grey where there is no number.
fn shade(value: Option<f64>) -> RGBColor {
    let Some(value) = value else {
        return RGBColor(200, 200, 200);
    };
    let mix = |low: u8, high: u8| {
        let value = value.clamp(0.0, 1.0);
        (f64::from(low) + (f64::from(high) - f64::from(low)) * value).round() as u8
    };
    RGBColor(
        mix(LIGHT.0, DARK.0),
        mix(LIGHT.1, DARK.1),
        mix(LIGHT.2, DARK.2),
    )
}

fn color(color: Hue) -> RGBColor {
    let (r, g, b) = color.rgb();
    RGBColor(r, g, b)
}

/// The vertical axis for the chart's numbers.
pub(super) fn y_axis(chart: &Chart) -> Fitted {
    let points = match &chart.content {
        Content::Lines(lines) => lines.iter().flat_map(|line| &line.points).collect(),
        Content::Cells(_) => Vec::new(),
    };
    let numbers = points.into_iter().flat_map(|at| [at.y, at.low, at.high]);
    fit(&chart.y).fit(numbers)
}

fn fit(axis: &super::Axis) -> PlotAxis {
    let ticks = axis.ticks.iter().flatten().map(|(at, _)| *at);
    match (axis.log, &axis.ticks, axis.range) {
        (true, Some(_), _) => PlotAxis::log_at(ticks),
        (true, None, _) => PlotAxis::log(),
        (false, Some(_), Some((low, high))) => PlotAxis::from_to(low, high).with_ticks(ticks),
        (false, _, Some((low, high))) => PlotAxis::from_to(low, high),
        (false, _, None) => PlotAxis::linear(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{At, Axis};
    use super::*;

    fn chart(style: Style) -> Chart {
        let series = |name: &str, color| Series {
            name: name.to_string(),
            legend: None,
            color,
            style,
            points: vec![
                At::exact(1.0, 2.0),
                At::exact(2.0, 0.0),
                At::exact(3.0, f64::NAN),
            ],
        };
        let lines = vec![
            series("scaled by 1/√d_k", Hue::Blue),
            series(
                "a second line whose name does not fit beside the first",
                Hue::Green,
            ),
        ];
        Chart::lines(
            "id",
            "A title",
            Axis::linear("step"),
            Axis::log("norm"),
            lines,
        )
    }

    #[test]
    fn every_style_is_drawn_with_a_title_and_a_legend_that_fits() {
        for style in [Style::Band, Style::Bars, Style::DashedBars, Style::Theory] {
            let chart = chart(style);
            assert_eq!(legend(&chart).len(), 2);
            let text = svg(&[&chart], 1);
            assert!(
                text.starts_with("<svg") && text.trim_end().ends_with("</svg>"),
                "{text}"
            );
            for expected in ["A title", "scaled by 1/√d_k", "step", "norm"] {
                assert!(text.contains(expected), "{style:?}: {expected}");
            }
            assert!(!text.contains("NaN"), "{style:?}");
        }
        assert!(legend(&chart(Style::Run)).is_empty());
    }

    #[test]
    fn charts_stand_side_by_side() {
        let chart = chart(Style::Bars);
        let text = svg(&[&chart, &chart, &chart], 2);
        assert!(text.contains("width=\"960\""), "{}", &text[..200]);
        assert_eq!(text.matches("A title").count(), 3);
    }

    #[test]
    fn cells_are_darker_the_larger_they_are() {
        assert_eq!(shade(Some(0.0)), RGBColor(LIGHT.0, LIGHT.1, LIGHT.2));
        assert_eq!(shade(Some(1.0)), RGBColor(DARK.0, DARK.1, DARK.2));
        let chart = Chart {
            content: Content::Cells(Cells {
                columns: vec!["asked".to_string()],
                rows: vec![("step 0".to_string(), vec![Some(1.0)])],
            }),
            ..chart(Style::Run)
        };
        let text = svg(&[&chart], 1);
        assert!(text.contains("#0B4F9C") && text.contains("asked"), "{text}");
    }
}
