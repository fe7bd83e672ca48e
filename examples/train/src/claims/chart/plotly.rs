//! A chart as a plot of plotly.js.

use plotly::color::Rgba;
use plotly::common::{
    Anchor, ColorBar, ColorScale, ColorScaleElement, DashType, ErrorData, ErrorType, Fill,
    HoverInfo, Line, Marker, MarkerSymbol, Mode, Orientation, Title,
};
use plotly::configuration::DisplayModeBar;
use plotly::layout::{Axis as PlotAxis, AxisType, DragMode, GroupClick, HoverMode, Legend, Margin};
use plotly::{Configuration, HeatMap, Layout, Plot, Scatter, Trace};

use plotters::coord::ranged1d::ValueFormatter;

use super::{Axis, Cells, Chart, Content, Hue, Series, Style};
use crate::plot::Fitted;
use crate::report::number;

/// The plot: hover shows each number with its interval, and a click in the legend switches a line
/// on or off, its band with it. Colours of text and grid are the page's.
pub(in crate::claims) fn plot(chart: &Chart) -> Plot {
    let mut plot = Plot::new();
    match &chart.content {
        Content::Lines(lines) => {
            for trace in lines.iter().flat_map(|line| traces(chart, line)) {
                plot.add_trace(trace);
            }
        }
        Content::Cells(cells) => plot.add_trace(heat_map(cells)),
    }
    let (mut x, mut y) = (axis(&chart.x), axis(&chart.y));
    match chart.content {
        // Names, even if they are numbers.
        Content::Cells(_) => {
            x = x.type_(AxisType::Category);
            y = y.type_(AxisType::Category);
        }
        // The ticks of the SVG.
        Content::Lines(_) if chart.y.log => {
            let ticks = super::svg::y_axis(chart).ticks;
            y = y.tick_text(ticks.iter().map(Fitted::format).collect());
            y = y.tick_values(ticks);
        }
        Content::Lines(_) => {}
    }
    plot.set_layout(
        Layout::new()
            .x_axis(x)
            .y_axis(y)
            .hover_mode(HoverMode::Closest)
            // A finger that moves over a plot scrolls the page.
            .drag_mode(DragMode::False)
            .margin(Margin::new().left(62).right(12).top(8).bottom(46))
            .paper_background_color("rgba(0,0,0,0)")
            .plot_background_color("rgba(0,0,0,0)")
            .legend(
                Legend::new()
                    .orientation(Orientation::Horizontal)
                    .group_click(GroupClick::ToggleGroup)
                    .x(0.0)
                    .y(-0.22)
                    .y_anchor(Anchor::Top),
            ),
    );
    plot.set_configuration(
        Configuration::new()
            .responsive(true)
            .display_logo(false)
            .display_mode_bar(DisplayModeBar::False),
    );
    plot
}

fn axis(axis: &Axis) -> PlotAxis {
    let mut plotted = PlotAxis::new()
        .title(Title::with_text(axis.label.as_str()))
        .zero_line(false)
        .auto_margin(true);
    if axis.log {
        plotted = plotted.type_(AxisType::Log);
    }
    if let Some((low, high)) = axis.range {
        plotted = plotted.range(vec![low, high]);
    }
    if let Some(ticks) = &axis.ticks {
        plotted = plotted
            .tick_values(ticks.iter().map(|(at, _)| *at).collect())
            .tick_text(ticks.iter().map(|(_, name)| name.clone()).collect());
    }
    plotted
}

fn traces(chart: &Chart, line: &Series) -> Vec<Box<dyn Trace>> {
    let floor = chart.floor().unwrap_or(f64::NEG_INFINITY);
    let shown = |value: f64| {
        short(if value.is_nan() {
            value
        } else {
            value.max(floor)
        })
    };
    let column = |of: fn(&super::At) -> f64| -> Vec<f64> {
        line.points.iter().map(|at| shown(of(at))).collect()
    };
    let x: Vec<f64> = line.points.iter().map(|at| at.x).collect();
    let y = column(|at| at.y);
    let color = |alpha| rgba(line.color, alpha);
    let base = Scatter::new(x.clone(), y.clone())
        .name(line.legend.as_ref().unwrap_or(&line.name))
        .legend_group(&line.name)
        .text_array(labels(chart, line))
        .hover_template("%{text}<extra></extra>");
    let whole: Box<dyn Trace> = match line.style {
        Style::Run => base
            .mode(Mode::Lines)
            .line(Line::new().width(1.0).color(color(0.45))),
        Style::Band => base
            .mode(Mode::Lines)
            .line(Line::new().width(2.5).color(color(1.0))),
        Style::Theory => base
            .mode(Mode::Lines)
            .line(Line::new().width(1.5).dash(DashType::Dot).color(color(1.0))),
        Style::Bars | Style::DashedBars => {
            let dashed = line.style == Style::DashedBars;
            let dash = if dashed {
                DashType::Dash
            } else {
                DashType::Solid
            };
            let (low, high) = (column(|at| at.low), column(|at| at.high));
            let above = high.iter().zip(&y).map(|(high, y)| high - y).collect();
            let below = low.iter().zip(&y).map(|(low, y)| y - low).collect();
            base.mode(Mode::LinesMarkers)
                .line(Line::new().width(2.0).dash(dash).color(color(1.0)))
                .marker(
                    Marker::new()
                        .size(8)
                        .color(color(1.0))
                        .symbol(symbol(line.color)),
                )
                .error_y(
                    ErrorData::new(ErrorType::Data)
                        .symmetric(false)
                        .array(above)
                        .array_minus(below)
                        .color(color(1.0))
                        .thickness(1.5),
                )
        }
    };
    if line.style != Style::Band || line.points.iter().all(|at| at.low == at.high) {
        return vec![whole];
    }
    let edge = |y| {
        Scatter::new(x.clone(), y)
            .name(&line.name)
            .legend_group(&line.name)
            .show_legend(false)
            .hover_info(HoverInfo::Skip)
            .mode(Mode::Lines)
            .line(Line::new().width(0.0).color(color(0.0)))
    };
    let low = edge(column(|at| at.low));
    let high = edge(column(|at| at.high))
        .fill(Fill::ToNextY)
        .fill_color(color(0.18));
    vec![low, high, whole]
}

/// What hovering shows at each point.
fn labels(chart: &Chart, line: &Series) -> Vec<String> {
    let label = |at: &super::At| {
        let mut ticks = chart.x.ticks.iter().flatten();
        let x = match ticks.find(|(x, _)| *x == at.x) {
            Some((_, name)) => name.clone(),
            None => number(at.x),
        };
        let bound = if at.more { "> " } else { "" };
        let interval = match at.low == at.high {
            true => String::new(),
            false => format!(" ({} to {})", number(at.low), number(at.high)),
        };
        format!(
            "{}<br>{} {x}: {bound}{}{interval}",
            line.name,
            chart.x.label,
            number(at.y)
        )
    };
    line.points.iter().map(label).collect()
}

fn heat_map(cells: &Cells) -> Box<dyn Trace> {
    let rows: Vec<String> = cells
        .rows
        .iter()
        .rev()
        .map(|(name, _)| name.clone())
        .collect();
    let values: Vec<Vec<f64>> = cells
        .rows
        .iter()
        .rev()
        .map(|(_, row)| row.iter().map(|v| short(v.unwrap_or(f64::NAN))).collect())
        .collect();
    let end = |at: f64, (r, g, b): (u8, u8, u8)| ColorScaleElement(at, format!("rgb({r},{g},{b})"));
    HeatMap::new(cells.columns.clone(), rows, values)
        .zmin(0.0)
        .zmax(1.0)
        .color_scale(ColorScale::Vector(vec![
            end(0.0, super::svg::LIGHT),
            end(1.0, super::svg::DARK),
        ]))
        .color_bar(ColorBar::new().thickness(12))
        .x_gap(1.0)
        .y_gap(1.0)
        .hover_template("%{x}<br>%{y}: weight %{z:.3f}<extra></extra>")
}

fn rgba(color: Hue, alpha: f64) -> Rgba {
    let (r, g, b) = color.rgb();
    Rgba::new(r, g, b, alpha)
}

/// Told apart without colour too.
fn symbol(color: Hue) -> MarkerSymbol {
    match color {
        Hue::Blue => MarkerSymbol::Circle,
        Hue::Vermilion => MarkerSymbol::TriangleUp,
        Hue::Green => MarkerSymbol::Square,
        Hue::Purple => MarkerSymbol::Diamond,
        Hue::Grey => MarkerSymbol::Cross,
    }
}

/// To six digits: more cannot be seen, and the page is smaller.
fn short(value: f64) -> f64 {
    match value.is_finite() {
        true => format!("{value:.5e}")
            .parse()
            .expect("a number that was written"),
        false => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::super::At;
    use super::*;
    use serde_json::{Value, json};

    fn json_of(style: Style, points: Vec<At>, y: Axis) -> Value {
        let series = Series {
            name: "unscaled".to_string(),
            legend: None,
            color: Hue::Vermilion,
            style,
            points,
        };
        let chart = Chart::lines("id", "title", Axis::linear("step"), y, vec![series]);
        serde_json::to_value(plot(&chart)).unwrap()
    }

    fn at(y: f64, low: f64, high: f64) -> At {
        At {
            low,
            high,
            ..At::exact(5.0, y)
        }
    }

    #[test]
    fn a_line_and_its_band_are_one_group_of_the_legend() {
        let plot = json_of(Style::Band, vec![at(1.0, 0.5, 2.0)], Axis::linear("loss"));
        let data = plot["data"].as_array().unwrap();
        assert_eq!(data.len(), 3);
        for trace in data {
            assert_eq!(trace["legendgroup"], "unscaled");
        }
        assert_eq!(data[0]["showlegend"], false);
        assert_eq!(data[1]["fill"], "tonexty");
        assert_eq!(
            data[2]["text"],
            json!(["unscaled<br>step 5: 1 (0.500 to 2)"])
        );
    }

    #[test]
    fn zero_lies_at_the_foot_of_a_logarithmic_axis_but_is_called_zero() {
        let points = vec![
            at(0.0, 0.0, 0.0),
            at(3.0, 3.0, 3.0),
            at(f64::NAN, f64::NAN, f64::NAN),
        ];
        let plot = json_of(Style::Run, points, Axis::log("norm"));
        assert_eq!(plot["layout"]["yaxis"]["type"], "log");
        assert_eq!(plot["data"][0]["y"], json!([3e-7, 3.0, null]));
        assert_eq!(plot["data"][0]["text"][0], "unscaled<br>step 5: 0");
    }

    #[test]
    fn bars_reach_from_the_smallest_to_the_largest() {
        let plot = json_of(Style::Bars, vec![at(4.0, 3.0, 6.0)], Axis::log("steps"));
        let bars = &plot["data"][0]["error_y"];
        assert_eq!(
            (&bars["array"], &bars["arrayminus"]),
            (&json!([2.0]), &json!([1.0]))
        );
    }

    #[test]
    fn the_first_row_of_cells_is_the_last_of_the_plot() {
        let chart = Chart {
            id: "id".to_string(),
            title: "title".to_string(),
            x: Axis::linear("pair"),
            y: Axis::linear("after"),
            content: Content::Cells(Cells {
                columns: vec!["a".to_string(), "b".to_string()],
                rows: vec![
                    ("0".to_string(), vec![Some(0.5), None]),
                    ("9".to_string(), vec![Some(0.0), Some(1.0)]),
                ],
            }),
        };
        let plot = serde_json::to_value(plot(&chart)).unwrap();
        assert_eq!(plot["layout"]["xaxis"]["type"], "category");
        assert_eq!(plot["data"][0]["y"], json!(["9", "0"]));
        assert_eq!(plot["data"][0]["z"], json!([[0.0, 1.0], [0.5, null]]));
    }
}
