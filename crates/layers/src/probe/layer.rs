//! One call of one layer, summed up by head.

use core::fmt;

use burn::tensor::DType;
use serde::{Deserialize, Serialize};

use super::rows::norm;
use super::statistics::SATURATED;
use super::{AttentionStatistics, CallFacts, RowStatistics};
use crate::op::{PER_ROW, column};
use crate::scale::Scale;

/// What the softmax of one layer did in one call, from [`Probes::take`](crate::Probes::take).
///
/// Written by serde, the statistics of all heads stand beside the path, under the names that
/// [`AttentionStatistics`] gives them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerStatistics {
    /// The layer's path in the model, `blocks.0.attention` say; empty if the model is the layer.
    pub path: String,
    /// How many calls of the layer came before, since the probes were switched on.
    pub call: usize,
    /// The factor on the scores, by the layer's configuration.
    pub scale: Scale,
    /// The number that the layer multiplies queries by. What differs from query to query
    /// ([`Scale::LogLength`]) or is learned ([`Scale::Learned`]) is counted to the queries
    /// instead.
    pub factor: f64,
    /// The width of the model; that of all heads together where the layer does not know it.
    pub d_model: usize,
    /// The width of a query and a key.
    pub d_k: usize,
    /// The element type of the queries.
    pub dtype: DType,
    /// Over all heads.
    #[serde(flatten)]
    pub statistics: AttentionStatistics,
    /// Head by head; those without a query that sees a key are left out.
    pub heads: Vec<HeadStatistics>,
}

/// What the softmax of one head did in one call, and what it had to work with.
///
/// Root mean squares are over elements. Shares are of the queries that see two keys or more, but
/// for `non_finite` and `filled`, which are of those that see any.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadStatistics {
    /// Which head, counted from 0.
    pub head: usize,
    /// How many queries see a key, over all samples.
    pub rows: usize,
    /// How many of them see two keys or more: a query that sees one has no choice.
    pub choosing: usize,
    /// How many pairs of a query and a key that it sees there are.
    pub scores: usize,
    /// The head's own.
    #[serde(flatten)]
    pub statistics: AttentionStatistics,
    /// The standard deviation of a query's scores from their mean, as they enter the softmax.
    pub row_std: f64,
    /// The same of the products of query and key times the factor, before softcap and bias.
    pub product_std: f64,
    /// The largest product of a query and a key, times the factor, without its sign.
    pub max_product: f64,
    /// The root mean square of the queries, before the factor.
    pub query_rms: f64,
    /// The root mean square of the keys that are seen.
    pub key_rms: f64,
    /// The root mean square of the keys' differences from their mean.
    pub key_spread: f64,
    /// The root mean square of the values that are seen.
    pub value_rms: f64,
    /// The root mean square of the values' differences from their mean.
    pub value_spread: f64,
    /// The lowest finite number of the bias; 0 without one.
    pub lowest_bias: f64,
    /// The mean over the queries of the L2 norm of the loss's gradient at what attention gives;
    /// `None` where no gradient passed.
    pub context_gradient: Option<f64>,
    /// The share of queries whose largest weight is above 0.99.
    pub one_hot: f64,
    /// The share of queries whose largest weight is within 1 % of `1 / keys`.
    pub uniform: f64,
    /// The share of dead queries among those that the loss depends on: the gradient at the scores
    /// is below 1 % of what even weights would pass on. 1 if the loss depends on no query. `None`
    /// where no gradient passed.
    pub dead: Option<f64>,
    /// The share of queries with a score, a weight or a gradient that is not finite.
    pub non_finite: f64,
    /// The share of queries all of whose keys are below half of `lowest_bias`: they see only what
    /// the bias was to hide.
    pub filled: f64,
}

/// How close to `1 / keys` the largest weight of a uniform row is.
const UNIFORM: f64 = 1.01;
/// Below this part of what even weights pass on, a query is dead.
const DEAD: f64 = 0.01;
/// Values whose spread is this part of their size are equal but for rounding.
const EQUAL: f64 = 1e-3;

/// The numbers of one query row.
#[derive(Clone, Copy)]
struct Row<'a>(&'a [f64; PER_ROW]);

impl Row<'_> {
    fn at(self, column: usize) -> f64 {
        self.0[column]
    }

    fn keys(self) -> f64 {
        self.at(column::KEYS)
    }

    fn is_finite(self) -> bool {
        // The tile columns but the gradient, which has a stand-in, and the largest score, which is
        // finite where these are.
        [
            column::SCORE_SUM,
            column::MAX_WEIGHT,
            column::ENTROPY,
            column::SCORE_GRADIENT,
            column::MAX_SCORE,
            column::CONTEXT_GRADIENT,
        ]
        .iter()
        .all(|&column| self.at(column).is_finite())
    }

    /// The variance of what the two columns sum up.
    fn variance(self, sum: usize, squares: usize) -> f64 {
        let mean = self.at(sum) / self.keys();
        (self.at(squares) / self.keys() - mean * mean).max(0.0)
    }

    /// Whether the gradient at the scores has died on the way from that at the context; `None` if
    /// there is nothing to pass on.
    fn is_dead(self, d_v: f64) -> Option<bool> {
        let arrives = norm(self.at(column::CONTEXT_GRADIENT))?;
        if arrives == 0.0 {
            return None;
        }
        let spread = self.at(column::VALUE_SPREAD).sqrt();
        // Even weights, and values in directions of their own.
        let even = arrives * spread / (d_v * self.keys()).sqrt();
        let equal = spread <= EQUAL * self.at(column::VALUE_SQUARES).sqrt();
        Some(equal || self.at(column::SCORE_GRADIENT) < DEAD * even)
    }
}

impl LayerStatistics {
    /// `None` if there was nothing to measure.
    pub(super) fn of(
        path: String,
        call: usize,
        facts: &CallFacts,
        rows: &[[f64; PER_ROW]],
    ) -> Option<Self> {
        let all: Vec<RowStatistics> = rows.iter().map(RowStatistics::from_numbers).collect();
        let statistics = AttentionStatistics::of(&all)?;
        let heads = (0..facts.heads)
            .filter_map(|head| {
                let of_head: Vec<Row> = (0..facts.batch)
                    .flat_map(|sample| {
                        let first = (sample * facts.heads + head) * facts.query_len;
                        rows[first..][..facts.query_len].iter().map(Row)
                    })
                    .filter(|row| row.keys() > 0.0)
                    .collect();
                HeadStatistics::of(head, &of_head, facts)
            })
            .collect();
        Some(Self {
            path,
            call,
            scale: facts.scale,
            factor: facts.factor,
            d_model: facts.d_model,
            d_k: facts.d_k,
            dtype: facts.dtype,
            statistics,
            heads,
        })
    }
}

impl HeadStatistics {
    /// Of rows that see a key.
    fn of(head: usize, rows: &[Row], facts: &CallFacts) -> Option<Self> {
        let all: Vec<RowStatistics> = rows
            .iter()
            .map(|row| RowStatistics::from_numbers(row.0))
            .collect();
        let statistics = AttentionStatistics::of(&all)?;
        let count = rows.len() as f64;
        let mean =
            |number: &dyn Fn(Row) -> f64| rows.iter().map(|row| number(*row)).sum::<f64>() / count;
        let share = |holds: &dyn Fn(Row) -> bool| mean(&|row| f64::from(holds(row)));
        let rms = |column: usize, width: usize| (mean(&|row| row.at(column)) / width as f64).sqrt();
        let choosing: Vec<Row> = rows
            .iter()
            .copied()
            .filter(|row| row.keys() > 1.0)
            .collect();
        let of_choosing = |holds: &dyn Fn(Row) -> bool| {
            let held = choosing.iter().filter(|row| holds(**row)).count();
            held as f64 / choosing.len().max(1) as f64
        };
        let deviation = |sum: usize, squares: usize| {
            let variances = choosing.iter().map(|row| row.variance(sum, squares));
            (variances.sum::<f64>() / choosing.len().max(1) as f64).sqrt()
        };
        let lowest_bias = rows[0].at(column::LOWEST_BIAS);
        let arriving: Option<Vec<f64>> = rows
            .iter()
            .map(|row| norm(row.at(column::CONTEXT_GRADIENT)))
            .collect();
        let dead = arriving.is_some().then(|| {
            let fates: Vec<bool> = choosing
                .iter()
                .filter_map(|row| row.is_dead(facts.d_v as f64))
                .collect();
            match (choosing.is_empty(), fates.is_empty()) {
                (true, _) => 0.0,
                (false, true) => 1.0,
                (false, false) => {
                    fates.iter().filter(|dead| **dead).count() as f64 / fates.len() as f64
                }
            }
        });
        Some(Self {
            head,
            rows: rows.len(),
            choosing: choosing.len(),
            scores: rows.iter().map(|row| row.keys() as usize).sum(),
            statistics,
            row_std: deviation(column::SCORE_SUM, column::SCORE_SQUARES),
            product_std: deviation(column::PRODUCT_SUM, column::PRODUCT_SQUARES),
            max_product: rows
                .iter()
                .map(|row| row.at(column::MAX_PRODUCT))
                .fold(0.0, f64::max),
            query_rms: rms(column::QUERY_SQUARES, facts.d_k) / facts.factor.abs(),
            key_rms: rms(column::KEY_SQUARES, facts.d_k),
            key_spread: rms(column::KEY_SPREAD, facts.d_k),
            value_rms: rms(column::VALUE_SQUARES, facts.d_v),
            value_spread: rms(column::VALUE_SPREAD, facts.d_v),
            lowest_bias,
            context_gradient: arriving.map(|norms| norms.iter().sum::<f64>() / count),
            one_hot: of_choosing(&|row| row.at(column::MAX_WEIGHT) > SATURATED),
            uniform: of_choosing(&|row| row.at(column::MAX_WEIGHT) * row.keys() < UNIFORM),
            dead,
            non_finite: share(&|row| !row.is_finite()),
            filled: share(&|row| {
                lowest_bias < 0.0 && row.at(column::MAX_SCORE) < lowest_bias / 2.0
            }),
        })
    }
}

/// One line: where, and what an eye looks for first.
impl fmt::Display for LayerStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = &self.statistics;
        let path = match self.path.as_str() {
            "" => "attention",
            path => path,
        };
        write!(
            f,
            "{path}: scores deviate by {:.3}, largest weight {:.3}, entropy {:.3}, saturated {:.1} %",
            of.score_std,
            of.max_weight,
            of.entropy,
            of.saturated * 100.0
        )?;
        if let Some(gradient) = &of.score_grad {
            write!(
                f,
                ", score gradient p10 {:.2e} p50 {:.2e} p90 {:.2e}",
                gradient.p10, gradient.p50, gradient.p90
            )?;
        }
        Ok(())
    }
}
