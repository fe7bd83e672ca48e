//! Claim 10: the worked examples.

use layers::Scale;

use crate::claims::claim::{Claim, Figure, spread};
use crate::claims::results::Results;
use crate::claims::verdict::{Answer, Part};

const SENTENCE: &str = "The worked examples' weights: three tokens at d 4, the scores 8, 2, 0 at d 64, \
                        and 4, 4, 0 at d 16, each without the scale and with it.";
const RULE: &str = "Holds if every weight is within 0.000001 of the exact one, and what a source \
                    prints to two digits within half of the last.";

/// What a source prints for the scores 8, 2, 0 at d 64 with the scale.
const PRINTED: [f64; 3] = [0.53, 0.25, 0.22];

pub(super) fn claim(results: &Results) -> Claim {
    let mut figures = Vec::new();
    let mut exact: f64 = 0.0;
    let mut printed: Option<([f64; 3], f64)> = None;
    for example in &results.weights {
        for (row, theory) in example.rows.iter().zip(&example.theory) {
            exact = exact.max(furthest(row, theory));
        }
        let row = example.rows[0];
        if example.title.contains("8, 2, 0") && example.scale == Scale::InvSqrtDim {
            printed = Some((row, furthest(&row, &PRINTED)));
        }
        for (place, weight) in example.rows.iter().flatten().enumerate() {
            let name = format!("{}, {}, weight {}", example.title, example.scale, place + 1);
            figures.push(Figure::kept(name, spread([*weight])));
        }
    }
    let (row, off) = printed.expect("one of the worked examples");
    let parts = [
        Part::new("in exact arithmetic", Answer::from_bool(exact < 1e-6)),
        Part::new(
            "for the row that one source prints as 0.53, 0.25, 0.22",
            Answer::from_bool(off <= 0.005),
        ),
    ];
    let finding = format!(
        "The largest difference from exact arithmetic is {exact:.1e}. The scores 8, 2, 0 give {:.3}, \
         {:.3}, {:.3} with the scale.",
        row[0], row[1], row[2]
    );
    let shown = [
        Figure::shown("largest difference from exact arithmetic", spread([exact])),
        Figure::shown(
            "largest difference from the row printed as 0.53, 0.25, 0.22",
            spread([off]),
        ),
    ];
    figures.splice(0..0, shown);
    Claim::judged(10, SENTENCE, RULE, figures, &parts, finding)
}

fn furthest(row: &[f64; 3], from: &[f64; 3]) -> f64 {
    let differences = row.iter().zip(from).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn a_wrong_weight_turns_the_verdict_round() {
        let claim = super::claim(&fixture::results());
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        assert_eq!(
            claim.condition.unwrap(),
            "in exact arithmetic; not for the row that one source prints as 0.53, 0.25, 0.22"
        );
        let mut wrong = fixture::results();
        wrong.weights[0].rows[0][0] += 0.01;
        assert_eq!(super::claim(&wrong).verdict, Verdict::DoesNotHold);
    }

    #[test]
    fn a_row_that_is_as_printed_holds() {
        let mut printed = fixture::results();
        for example in &mut printed.weights {
            if example.title.contains("8, 2, 0") && example.scale == Scale::InvSqrtDim {
                example.rows[0] = PRINTED;
                example.theory[0] = PRINTED;
            }
        }
        assert_eq!(super::claim(&printed).verdict, Verdict::Holds);
    }
}
