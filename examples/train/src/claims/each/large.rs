//! Claim 9: a typical large score.

use layers::Scale;

use crate::claims::claim::{Claim, Figure};
use crate::claims::results::Results;
use crate::claims::verdict::{Answer, Part};
use crate::report::cell;

const SENTENCE: &str = "A typical large score, three deviations, grows from 24 to 68 from d 64 to d \
                        512, and is 3 after the scale.";
const RULE: &str = "Measured as the size that 99.73 % of the scores do not exceed, as within three \
                    deviations of a normal distribution. Holds if, in every seed, each of them is \
                    within 5 % of the number claimed.";

pub(super) fn claim(results: &Results) -> Claim {
    let claimed = [
        (Scale::Unscaled, "unscaled", 64, 24.0),
        (Scale::Unscaled, "unscaled", 512, 68.0),
        (Scale::InvSqrtDim, "scaled", 64, 3.0),
        (Scale::InvSqrtDim, "scaled", 512, 3.0),
    ];
    let mut figures = Vec::new();
    let mut parts = Vec::new();
    for (scale, name, d, number) in claimed {
        let large = results.scores(d, 1.0, scale, |at| at.large);
        let answer = Answer::within(&large, 0.95 * number, 1.05 * number);
        parts.push(Part::new(format!("{number} at d {d}, {name}"), answer));
        figures.push(Figure::shown(format!("large score, {name}, d {d}"), large));
    }
    let finding = format!(
        "Without the scale it is {} at d 64 and {} at d 512; with it {} and {}.",
        cell(&figures[0].spread),
        cell(&figures[1].spread),
        cell(&figures[2].spread),
        cell(&figures[3].spread),
    );
    Claim::judged(9, SENTENCE, RULE, figures, &parts, finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn another_number_is_named_as_the_part_that_does_not_hold() {
        let claim = super::claim(&fixture::results());
        assert_eq!((claim.verdict, claim.condition), (Verdict::Holds, None));
        let mut heavier = fixture::results();
        fixture::change(&mut heavier, Scale::Unscaled, |draw, at| {
            if draw.d == 64 {
                at.large = 30.0;
            }
        });
        let claim = super::claim(&heavier);
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        assert!(
            claim
                .condition
                .unwrap()
                .ends_with("; not 24 at d 64, unscaled")
        );
    }
}
