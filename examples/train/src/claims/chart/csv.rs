//! A chart's numbers, a line each.

use std::fmt::Write;

use super::{Chart, Content};

impl Chart {
    /// The numbers as they are, whatever the plot shows of them. `bound` is `>` where a number is
    /// one that the true one is above.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        match &self.content {
            Content::Lines(lines) => {
                let x = field(&self.x.label);
                text.push_str(&format!("series,{x},bound,value,low,high\n"));
                for line in lines {
                    let name = field(&line.name);
                    for at in &line.points {
                        let x = self.tick(at.x);
                        let bound = if at.more { ">" } else { "" };
                        let (y, low, high) = (number(at.y), number(at.low), number(at.high));
                        writeln!(text, "{name},{x},{bound},{y},{low},{high}").expect(TAKES);
                    }
                }
            }
            Content::Cells(cells) => {
                let (row, column) = (field(&self.y.label), field(&self.x.label));
                text.push_str(&format!("{row},{column},value\n"));
                for (name, values) in &cells.rows {
                    for (column, value) in cells.columns.iter().zip(values) {
                        let value = value.map_or(String::new(), |value| value.to_string());
                        let (name, column) = (field(name), field(column));
                        writeln!(text, "{name},{column},{value}").expect(TAKES);
                    }
                }
            }
        }
        text
    }

    /// The name at a place of the axis, or the number.
    fn tick(&self, x: f64) -> String {
        let mut ticks = self.x.ticks.iter().flatten();
        match ticks.find(|(at, _)| *at == x) {
            Some((_, name)) => field(name),
            None => number(x),
        }
    }
}

const TAKES: &str = "a string takes any text";

/// Empty where it is none.
fn number(value: f64) -> String {
    match value.is_finite() {
        true => value.to_string(),
        false => String::new(),
    }
}

/// In quotes where the text has a comma, a quote or a break in it.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{At, Axis, Cells, Chart, Content, Hue, Series, Style};

    #[test]
    fn lines_are_written_number_by_number() {
        let series = |name: &str, points| Series {
            name: name.to_string(),
            legend: None,
            color: Hue::Blue,
            style: Style::Bars,
            points,
        };
        let at = At {
            x: 1.0,
            y: 600.0,
            low: 40.0,
            high: 600.0,
            more: true,
        };
        let chart = Chart::lines(
            "steps",
            "Steps",
            Axis::names(
                "stack",
                ["1 layer".to_string(), "2 layers, deep".to_string()],
            ),
            Axis::log("steps"),
            vec![series("a, \"b\"", vec![At::exact(0.0, f64::NAN), at])],
        );
        assert_eq!(
            chart.csv(),
            "series,stack,bound,value,low,high\n\
             \"a, \"\"b\"\"\",1 layer,,,,\n\
             \"a, \"\"b\"\"\",\"2 layers, deep\",>,600,40,600\n"
        );
    }

    #[test]
    fn cells_are_written_row_by_row() {
        let chart = Chart {
            id: "weights".to_string(),
            title: "Weights".to_string(),
            x: Axis::linear("pair"),
            y: Axis::linear("step"),
            content: Content::Cells(Cells {
                columns: vec!["1".to_string(), "2".to_string()],
                rows: vec![("0".to_string(), vec![Some(0.25), None])],
            }),
        };
        assert_eq!(chart.csv(), "step,pair,value\n0,1,0.25\n0,2,\n");
    }
}
