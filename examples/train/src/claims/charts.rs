//! Which charts the report has.

use layers::Scale;

use super::chart::{At, Axis, Cells, Chart, Content, Hue, Series, Style};
use super::claim::spread;
use super::each::{learning_steps, stack_name};
use super::results::Results;
use super::runs::{Arm, Curve, Layer, Point, sample};
use super::scores::{CONSTANT, KEYS, ScoresAt};
use crate::report::number;
use crate::summary::Spread;

/// Charts under one heading.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub id: &'static str,
    pub title: &'static str,
    /// The numbers of the claims that it belongs to.
    pub claims: &'static [u8],
    pub text: String,
    pub charts: Vec<Chart>,
}

/// All sections.
pub(super) fn charts(results: &Results) -> Vec<Section> {
    vec![
        drawn(results),
        training(results),
        queries(results),
        rates(results),
        start(results),
        stacks(results),
        weights(results),
    ]
}

/// The charts of the first picture, by their ids.
pub(super) fn overview(sections: &[Section]) -> Vec<&Chart> {
    let all = || sections.iter().flat_map(|section| &section.charts);
    let ids = [
        "accuracy",
        "query_norm",
        "score_gradient_by_d",
        "learning_rates",
    ];
    let first = |id: &&str| all().find(|chart| chart.id.starts_with(*id));
    ids.iter().filter_map(first).collect()
}

fn color(arm: Arm) -> Hue {
    match arm {
        Arm::Scaled => Hue::Blue,
        Arm::Unscaled => Hue::Vermilion,
        Arm::SmallInit => Hue::Green,
    }
}

fn largest(results: &Results) -> usize {
    *results.plan.d_k.iter().max().expect("a plan has widths")
}

fn series(name: impl Into<String>, color: Hue, style: Style, points: Vec<At>) -> Series {
    Series {
        name: name.into(),
        legend: None,
        color,
        style,
        points,
    }
}

fn drawn(results: &Results) -> Section {
    let widths = &results.plan.drawn_widths;
    let x = || Axis::sizes("d", widths.iter().map(|d| *d as f64));
    let line = |name: &str, color, style, scale, of: fn(&ScoresAt) -> f64| {
        let at = |d: &usize| At::of(*d as f64, &results.scores(*d, 1.0, scale, of));
        series(name, color, style, widths.iter().filter_map(at).collect())
    };
    let factors = |of: fn(&ScoresAt) -> f64| {
        [
            ("no factor", Hue::Vermilion, Scale::Unscaled),
            ("1/√d", Hue::Blue, Scale::InvSqrtDim),
            ("1/d", Hue::Green, Scale::InvDim),
            ("1/8", Hue::Purple, CONSTANT),
        ]
        .map(|(name, color, scale)| line(name, color, Style::Bars, scale, of))
        .to_vec()
    };
    let root = |d: &usize| At::exact(*d as f64, (*d as f64).sqrt());
    let mut deviations = factors(|at| at.std);
    let theory = widths.iter().map(root).collect();
    deviations.push(series("√d", Hue::Grey, Style::Theory, theory));
    let bare = Scale::Unscaled;
    let (solid, dashed) = (Style::Bars, Style::DashedBars);
    let gradients = vec![
        line(
            "median, scaled",
            Hue::Blue,
            solid,
            Scale::InvSqrtDim,
            |at| at.gradient.p50,
        ),
        line("median, unscaled", Hue::Vermilion, solid, bare, |at| {
            at.gradient.p50
        }),
        line("mean, unscaled", Hue::Vermilion, dashed, bare, |at| {
            at.gradient.mean
        }),
        line(
            "90th percentile, unscaled",
            Hue::Purple,
            dashed,
            bare,
            |at| at.gradient.p90,
        ),
        line("99th percentile, unscaled", Hue::Grey, dashed, bare, |at| {
            at.gradient.p99
        }),
    ];
    Section {
        id: "scores",
        title: "Scores of random queries and keys",
        claims: &[1, 2, 3, 4, 9],
        text: format!(
            "{} sets of {KEYS} queries and {KEYS} keys a seed and width, entries from N(0, 1), before \
             any training. A query's gradient is the L2 norm of the loss's gradient at its {KEYS} \
             scores, where the gradient that comes to its output is a random direction of length 1 and \
             values are from N(0, 1).",
            results.plan.sets
        ),
        charts: vec![
            Chart::lines(
                "score_deviation",
                "Standard deviation of the scores",
                x(),
                Axis::log("standard deviation"),
                deviations,
            ),
            Chart::lines(
                "largest_weight",
                "Largest weight, mean over the queries",
                x(),
                Axis::from_to("weight", 0.0, 1.04),
                factors(|at| at.max_weight),
            ),
            Chart::lines(
                "entropy",
                "Entropy of the weights, by that of uniform attention",
                x(),
                Axis::from_to("entropy / ln n", 0.0, 1.04),
                factors(|at| at.entropy),
            ),
            Chart::lines(
                "score_gradient_by_d",
                "Gradient at a query's scores, before training",
                x(),
                Axis::log("L2 norm"),
                gradients,
            ),
        ],
    }
}

/// A thick line for the median of an arm's runs in the band of all, and a thin one for each.
fn over_steps(
    results: &Results,
    arms: &[Arm],
    d_k: usize,
    of: impl Fn(&Point) -> Option<f64>,
) -> Vec<Series> {
    let mut lines = Vec::new();
    for &arm in arms {
        let runs = results.trained(arm, d_k);
        lines.push(series(
            arm.name(),
            color(arm),
            Style::Band,
            median(&runs, &of),
        ));
        for (seed, run) in results.plan.seeds.iter().zip(&runs) {
            let at = |point: &Point| Some(At::exact(point.step as f64, of(point)?));
            let points = run.points.iter().filter_map(at).collect();
            let name = format!("{}, seed {seed}", arm.name());
            lines.push(Series {
                legend: Some(format!("seed {seed}")),
                ..series(name, color(arm), Style::Run, points)
            });
        }
    }
    lines
}

/// The median over runs that were logged at the same steps.
fn median(runs: &[&Curve], of: impl Fn(&Point) -> Option<f64>) -> Vec<At> {
    let logged = runs.iter().map(|run| run.points.len()).min().unwrap_or(0);
    let at = |place: usize| {
        let values: Option<Vec<f64>> = runs.iter().map(|run| of(&run.points[place])).collect();
        At::of(runs[0].points[place].step as f64, &spread(values?))
    };
    (0..logged).filter_map(at).collect()
}

fn training(results: &Results) -> Section {
    let both = [Arm::Scaled, Arm::Unscaled];
    let plan = &results.plan;
    let last = largest(results);
    let mut charts = Vec::new();
    for d_k in std::iter::once(last).chain(plan.d_k.iter().copied().filter(|d_k| *d_k != last)) {
        charts.push(Chart::lines(
            format!("accuracy_d_k-{d_k}"),
            format!("Accuracy, mean of 20 batches, d_k {d_k}"),
            Axis::linear("step"),
            Axis::from_to("share right", 0.0, 1.04),
            over_steps(results, &both, d_k, |point| Some(point.accuracy)),
        ));
    }
    charts.push(Chart::lines(
        "loss",
        format!("Loss, d_k {last}"),
        Axis::linear("step"),
        Axis::log("cross-entropy (nats)"),
        over_steps(results, &both, last, |point| Some(point.loss)),
    ));
    charts.push(Chart::lines(
        "query_norm",
        format!("Gradient norm of the query weights, d_k {last}"),
        Axis::linear("step"),
        Axis::log("L2 norm"),
        over_steps(results, &both, last, |point| Some(point.query_norm)),
    ));
    let by_size = |of: &dyn Fn(&[&Curve]) -> Spread, arm, style, name: String| {
        let at = |d_k: &usize| At::of(*d_k as f64, &of(&results.trained(arm, *d_k)));
        series(
            name,
            color(arm),
            style,
            plan.d_k.iter().filter_map(at).collect(),
        )
    };
    let x = || Axis::sizes("d_k", plan.d_k.iter().map(|d_k| *d_k as f64));
    let half =
        |runs: &[&Curve]| super::claim::steps(runs.iter().map(|run| (run.half_at, run.steps)));
    let mut steps = Vec::new();
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for arm in both {
        let name = |what: &str| format!("{what}, {}", arm.name());
        steps.push(by_size(&learning_steps, arm, Style::Bars, name("90 %")));
        steps.push(by_size(&half, arm, Style::DashedBars, name("50 %")));
        let loss = |runs: &[&Curve]| spread(runs.iter().map(|run| run.final_loss));
        losses.push(by_size(&loss, arm, Style::Bars, arm.name().to_string()));
        let query = |runs: &[&Curve]| spread(runs.iter().map(|run| run.start().query_norm));
        norms.push(by_size(&query, arm, Style::Bars, name("query")));
        let key = |runs: &[&Curve]| spread(runs.iter().map(|run| run.start().key_norm));
        norms.push(by_size(&key, arm, Style::DashedBars, name("key")));
    }
    charts.extend([
        Chart::lines(
            "steps_to_learn",
            "Steps to an accuracy",
            x(),
            Axis::log("steps"),
            steps,
        ),
        Chart::lines(
            "final_loss",
            format!(
                "Loss, mean of steps {} to {}",
                plan.steps.saturating_sub(100),
                plan.steps
            ),
            x(),
            Axis::log("cross-entropy (nats)"),
            losses,
        ),
        Chart::lines(
            "norms_at_start",
            "Gradient norms of query and key weights, step 0",
            x(),
            Axis::log("L2 norm"),
            norms,
        ),
    ]);
    Section {
        id: "training",
        title: "Training with and without the scale",
        claims: &[5, 6],
        text: "Associative recall: of 16 pairs of a key and a value, name the value of the key that is \
               asked for; guessing gives 1 of 32. Adam at a rate of 0.001, batches of 64; both arms start \
               from the same weights and see the same batches. Thick: the median over the seeds, in the \
               band of all; thin: each run. Accuracy is the mean of the last 20 batches."
            .to_string(),
        charts,
    }
}

/// How the gradients of single queries are spread, step by step.
fn queries(results: &Results) -> Section {
    let d_k = largest(results);
    let quantile = |arm: Arm, of: fn(&Layer) -> f64| {
        median(&results.trained(arm, d_k), |point| {
            point.layers.first().map(of)
        })
    };
    let charts = [Arm::Scaled, Arm::Unscaled].map(|arm| {
        let middle = quantile(arm, |layer| layer.p50);
        let (low, high) = (
            quantile(arm, |layer| layer.p10),
            quantile(arm, |layer| layer.p90),
        );
        let band = middle
            .iter()
            .zip(low.iter().zip(&high))
            .map(|(at, (low, high))| At {
                low: low.y,
                high: high.y,
                ..*at
            });
        let mean = quantile(arm, |layer| layer.mean);
        let mean = mean.iter().map(|at| At::exact(at.x, at.y)).collect();
        Chart::lines(
            match arm {
                Arm::Scaled => "queries_scaled",
                _ => "queries_unscaled",
            },
            format!("Gradient at a query's scores, {}, d_k {d_k}", arm.name()),
            Axis::linear("step"),
            Axis::log("L2 norm"),
            vec![
                series(
                    "median; band: 10 to 90 %",
                    color(arm),
                    Style::Band,
                    band.collect(),
                ),
                series("mean over the queries", Hue::Grey, Style::Theory, mean),
            ],
        )
    });
    Section {
        id: "queries",
        title: "The gradients of single queries over training",
        claims: &[4, 5],
        text: "The L2 norm of the gradient of a sample's own loss at the scores of its query, over the \
               queries of a batch. Each quantile is the median over the seeds. A logarithmic axis shows \
               seven decades; what is smaller, 0 included, lies at its foot."
            .to_string(),
        charts: charts.to_vec(),
    }
}

fn rates(results: &Results) -> Section {
    let plan = &results.plan;
    let chart = |d_k: &usize| {
        let line = |arm: Arm| {
            let at =
                |rate: &f64| At::of(*rate, &learning_steps(&results.at_rate(arm, *d_k, *rate)));
            let points = plan.rates.iter().filter_map(at).collect();
            series(arm.name(), color(arm), Style::Bars, points)
        };
        Chart::lines(
            format!("learning_rates_d_k-{d_k}"),
            format!("Steps to 90 % accuracy by learning rate, d_k {d_k}"),
            Axis::sizes("learning rate", plan.rates.iter().copied()),
            Axis::log("steps"),
            vec![line(Arm::Scaled), line(Arm::Unscaled)],
        )
    };
    Section {
        id: "rates",
        title: "Learning rates",
        claims: &[7],
        text: format!(
            "Runs end when they have learned the task, or after {} steps: a run that has not learned it \
             by then stands at that number, which its own is above.",
            plan.rate_steps
        ),
        charts: plan.rate_d_k.iter().rev().map(chart).collect(),
    }
}

fn start(results: &Results) -> Section {
    let d_k = largest(results);
    let chart = |id: &str, title: &str, y, of: fn(&Point) -> Option<f64>| {
        Chart::lines(
            id,
            format!("{title}, d_k {d_k}"),
            Axis::linear("step"),
            y,
            over_steps(results, &Arm::ALL, d_k, of),
        )
    };
    Section {
        id: "start",
        title: "Smaller weights at the start",
        claims: &[8],
        text: "The third arm has no scale; its query and key weights start smaller by d_k^(1/4) each, so \
               that its scores start as the scaled arm's do."
            .to_string(),
        charts: vec![
            chart("start_accuracy", "Accuracy, mean of 20 batches", Axis::from_to("share right", 0.0, 1.04), |point| {
                Some(point.accuracy)
            }),
            chart("start_deviation", "Standard deviation of the scores", Axis::log("standard deviation"), |point| {
                Some(point.layers.first()?.score_std)
            }),
            chart("start_entropy", "Entropy of the weights", Axis::from_to("entropy / ln n", 0.0, 1.04), |point| {
                Some(point.layers.first()?.entropy)
            }),
            chart("start_loss", "Loss", Axis::log("cross-entropy (nats)"), |point| Some(point.loss)),
        ],
    }
}

fn stacks(results: &Results) -> Section {
    let stacks = &results.plan.stacks;
    let names = || {
        Axis::names(
            "",
            stacks
                .iter()
                .map(|(layers, heads)| format!("{layers}×{heads}")),
        )
    };
    let ratio = |name: &str, color, of: &dyn Fn(&Curve, usize) -> f64| {
        let at = |(place, &(layers, heads)): (usize, &(usize, usize))| {
            let arm = |arm| results.stack(arm, layers, heads);
            let pairs = arm(Arm::Unscaled).into_iter().zip(arm(Arm::Scaled));
            let ratios = pairs.map(|(unscaled, scaled)| of(unscaled, layers) / of(scaled, layers));
            At::of(place as f64, &spread(ratios))
        };
        series(
            name,
            color,
            Style::Bars,
            stacks.iter().enumerate().filter_map(at).collect(),
        )
    };
    let steps = |arm: Arm| {
        let at = |(place, &(layers, heads)): (usize, &(usize, usize))| {
            At::of(
                place as f64,
                &learning_steps(&results.stack(arm, layers, heads)),
            )
        };
        series(
            arm.name(),
            color(arm),
            Style::Bars,
            stacks.iter().enumerate().filter_map(at).collect(),
        )
    };
    let first = |run: &Curve| run.start().layers[0];
    let last = |run: &Curve, layers: usize| run.start().layers[layers - 1];
    let shallow = stacks
        .first()
        .map_or(String::new(), |(layers, heads)| stack_name(*layers, *heads));
    Section {
        id: "stacks",
        title: "Deeper stacks and more heads",
        claims: &[11],
        text: format!(
            "Layers × heads, from {shallow} on, at d_k {}. Ratios are without the scale by with it, at \
             step 0, each of two runs of one seed.",
            results.plan.stack_d_k
        ),
        charts: vec![
            Chart::lines(
                "stacks_steps",
                "Steps to 90 % accuracy",
                names(),
                Axis::log("steps"),
                vec![steps(Arm::Scaled), steps(Arm::Unscaled)],
            ),
            Chart::lines(
                "stacks_ratios",
                "Without the scale by with it, step 0",
                names(),
                Axis::log("ratio"),
                vec![
                    ratio("query weights' gradient norm", Hue::Vermilion, &|run, _| {
                        run.start().query_norm
                    }),
                    ratio(
                        "median score gradient, first layer",
                        Hue::Blue,
                        &|run, _| first(run).p50,
                    ),
                    ratio("the same, last layer", Hue::Green, &|run, layers| {
                        last(run, layers).p50
                    }),
                    ratio("largest weight, last layer", Hue::Purple, &|run, layers| {
                        last(run, layers).max_weight
                    }),
                ],
            ),
        ],
    }
}

fn weights(results: &Results) -> Section {
    let d_k = largest(results);
    let seed = results.plan.seeds[0];
    let asked = sample(seed).asked;
    let charts = Arm::ALL.map(|arm| {
        let run = results.trained(arm, d_k)[0];
        let columns = (0..crate::data::PAIRS).map(|pair| match pair == asked {
            true => "asked".to_string(),
            false => (pair + 1).to_string(),
        });
        let rows = run
            .weights
            .iter()
            .map(|at| (number(at.after as f64), at.weights.clone()));
        Chart {
            id: match arm {
                Arm::Scaled => "weights_scaled",
                Arm::Unscaled => "weights_unscaled",
                Arm::SmallInit => "weights_small_start",
            }
            .to_string(),
            title: format!("Attention of one sample, {}, d_k {d_k}", arm.name()),
            x: Axis::linear("pair"),
            y: Axis::linear("step"),
            content: Content::Cells(Cells {
                columns: columns.collect(),
                rows: rows.collect(),
            }),
        }
    });
    Section {
        id: "weights",
        title: "The attention weights of a sample",
        claims: &[3, 5, 8],
        text: format!(
            "The weights that the question of one sample, which no run trains on, gives to its 16 pairs \
             after so many steps (seed {seed}). The pair that it should look at is called asked."
        ),
        charts: charts.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::claims::fixture;

    #[test]
    fn every_chart_has_numbers_and_a_name_of_its_own_that_a_file_can_have() {
        let results = fixture::results();
        let sections = charts(&results);
        let mut ids = HashSet::new();
        let mut claims: HashSet<u8> = HashSet::new();
        for section in &sections {
            claims.extend(section.claims);
            for chart in &section.charts {
                assert!(ids.insert(chart.id.clone()), "{}", chart.id);
                let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
                assert!(chart.id.chars().all(plain), "{}", chart.id);
                match &chart.content {
                    Content::Lines(lines) => {
                        assert!(!lines.is_empty(), "{}", chart.id);
                        for line in lines {
                            assert!(!line.points.is_empty(), "{}: {}", chart.id, line.name);
                        }
                    }
                    Content::Cells(cells) => assert!(cells.rows.len() > 3, "{}", chart.id),
                }
            }
        }
        // All but the worked examples, which are a handful of numbers.
        assert_eq!(claims.len(), 10);
        assert_eq!(overview(&sections).len(), 4);
    }

    #[test]
    fn runs_can_be_told_apart_by_seed() {
        let results = fixture::results();
        let lines = over_steps(&results, &[Arm::Unscaled], 256, |point| Some(point.loss));
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "unscaled",
                "unscaled, seed 0",
                "unscaled, seed 1",
                "unscaled, seed 2"
            ]
        );
    }
}
