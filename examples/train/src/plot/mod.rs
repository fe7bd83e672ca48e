//! The comparison's plots, as SVG.

mod axis;
mod figure;
mod series;

use std::path::{Path, PathBuf};

use crate::Error;
use crate::config::Stop;
use crate::record::Record;
use crate::summary::{Quantity, Row};
use crate::training::Run;
pub(crate) use axis::{Axis, Fitted, MOST_DECADES};
use figure::{Figure, Panel};
use series::{Arm, Arms, by_size};

/// Draws all plots of a comparison into a folder and gives their paths.
///
/// - `overview.svg`: learning and score gradients at the largest `d_k`, and step 0 at every `d_k`.
/// - `learning.svg`: loss and accuracy, a column a `d_k`.
/// - `gradients.svg`: query weights and scores, a column a `d_k`.
/// - `by_d_k.svg`: what the two arms start from, against `d_k`, and how soon they learn.
///
/// A logarithmic axis shows seven decades at most; what is smaller, 0 included, lies at its foot.
///
/// # Errors
///
/// [`Error::Plot`] if a file cannot be written.
pub fn draw(dir: &Path, runs: &[Run], rows: &[Row], stop: Stop) -> Result<Vec<PathBuf>, Error> {
    let sizes = Arms::of(runs);
    let seeds = sizes.first().map_or(0, |arms| arms.scaled.len());
    let figures = [
        ("overview.svg", overview(&sizes, rows, stop, seeds)),
        ("learning.svg", learning(&sizes, stop, seeds)),
        ("gradients.svg", gradients(&sizes, seeds)),
        ("by_d_k.svg", by_d_k(rows, seeds)),
    ];
    let mut paths = Vec::new();
    for (name, figure) in figures {
        let path = dir.join(name);
        figure.draw(&path)?;
        paths.push(path);
    }
    Ok(paths)
}

fn overview(sizes: &[Arms], rows: &[Row], stop: Stop, seeds: usize) -> Figure {
    let mut panels = Vec::new();
    if let Some(largest) = sizes.last() {
        panels.push(accuracy(largest, stop));
        panels.push(score_gradient(largest));
    }
    panels.push(score_gradient_by_size(rows));
    panels.push(by_size_panel(
        rows,
        "Gradient norm of the query weights, step 0",
        "L2 norm",
        Quantity::QueryNorm,
    ));
    Figure {
        columns: 2,
        note: format!(
            "thick, marks: median of {seeds} seeds; thin, bars: each; band: over queries"
        ),
        panels,
    }
}

fn learning(sizes: &[Arms], stop: Stop, seeds: usize) -> Figure {
    let losses = sizes.iter().map(loss);
    Figure {
        columns: sizes.len(),
        note: format!("thick: median of {seeds} seeds as far as all of them go; thin: each seed"),
        panels: losses
            .chain(sizes.iter().map(|arms| accuracy(arms, stop)))
            .collect(),
    }
}

fn gradients(sizes: &[Arms], seeds: usize) -> Figure {
    let queries = sizes.iter().map(query_norm);
    Figure {
        columns: sizes.len(),
        note: format!(
            "thick: median of {seeds} seeds as far as all of them go; thin: each seed; bands: from \
             the 10th to the 90th percentile over the queries"
        ),
        panels: queries.chain(sizes.iter().map(score_gradient)).collect(),
    }
}

fn by_d_k(rows: &[Row], seeds: usize) -> Figure {
    Figure {
        columns: 2,
        note: format!("median of {seeds} seeds; bars: smallest to largest"),
        panels: vec![
            by_size_panel(
                rows,
                "Standard deviation of the scores, step 0",
                "standard deviation",
                Quantity::ScoreStd(0),
            ),
            score_gradient_by_size(rows),
            by_size_panel(
                rows,
                "Gradient norm of the query weights, step 0",
                "L2 norm",
                Quantity::QueryNorm,
            ),
            by_size_panel(rows, "Steps to learn", "steps", Quantity::StepsToLearn),
        ],
    }
}

fn loss(arms: &Arms) -> Panel {
    let mut panel = over_steps(arms, "Loss", "cross-entropy (nats)", Axis::linear());
    panel.add_arms(arms, |run| {
        let points = |record: &Record| Some((record.step as f64, record.loss));
        run.records.iter().filter_map(points).collect()
    });
    panel
}

fn accuracy(arms: &Arms, stop: Stop) -> Panel {
    let title = format!("Accuracy, mean over {} logged batches", stop.window);
    let mut panel = over_steps(arms, &title, "share right", Axis::from_to(0.0, 1.04));
    panel.rule = Some(stop.accuracy);
    panel.add_arms(arms, |run| {
        let windows = run.records.windows(stop.window);
        let mean = |window: &[Record]| {
            let sum: f64 = window.iter().map(|record| record.accuracy).sum();
            (
                window[window.len() - 1].step as f64,
                sum / window.len() as f64,
            )
        };
        windows.map(mean).collect()
    });
    panel
}

fn query_norm(arms: &Arms) -> Panel {
    let mut panel = over_steps(
        arms,
        "Gradient norm of query weights",
        "L2 norm",
        Axis::log(),
    );
    panel.add_arms(arms, |run| {
        let points = |record: &Record| Some((record.step as f64, record.grad_norm.query?));
        run.records.iter().filter_map(points).collect()
    });
    panel
}

fn score_gradient(arms: &Arms) -> Panel {
    let title = "Gradient at a query's scores: median, 10 to 90 %";
    let mut panel = over_steps(arms, title, "L2 norm", Axis::log());
    let quantile = |of: fn(&layers::Quantiles) -> f64| {
        move |run: &Run| {
            let points = |record: &Record| {
                let first = record.attention.as_ref()?.first()?;
                Some((record.step as f64, of(first.score_grad.as_ref()?)))
            };
            run.records.iter().filter_map(points).collect()
        }
    };
    panel.add_band(arms, quantile(|q| q.p10), quantile(|q| q.p90));
    panel.add_arms(arms, quantile(|q| q.p50));
    panel
}

fn over_steps(arms: &Arms, title: &str, unit: &str, y: Axis) -> Panel {
    Panel::new(
        &format!("{title} (d_k {})", arms.d_k),
        "step",
        unit,
        Axis::linear(),
        y,
    )
}

fn score_gradient_by_size(rows: &[Row]) -> Panel {
    by_size_panel(
        rows,
        "Gradient at the scores of the median query, step 0",
        "L2 norm",
        Quantity::ScoreGradMedian(0),
    )
}

fn by_size_panel(rows: &[Row], title: &str, unit: &str, quantity: Quantity) -> Panel {
    let x = Axis::log_at(by_size(rows, quantity, Arm::Scaled).iter().map(|at| at.x));
    let mut panel = Panel::new(title, "d_k", unit, x, Axis::log());
    for arm in [Arm::Scaled, Arm::Unscaled] {
        panel.add_spread(arm, by_size(rows, quantity, arm));
    }
    panel
}
