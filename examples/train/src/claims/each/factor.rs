//! Claim 2: which factor.

use layers::Scale;

use super::variance::growth;
use crate::claims::claim::{Claim, Figure};
use crate::claims::results::Results;
use crate::claims::scores::CONSTANT;
use crate::claims::verdict::{Answer, Part, list};
use crate::report::cell;

const SENTENCE: &str = "The factor must be 1/√d: with 1/d the deviation of the scores falls as 1/√d \
                        and attention goes uniform; a constant is right at one d only.";
const RULE: &str = "Holds if, in every seed, 1/√d keeps the deviation within 5 % of 1 at every d; \
                    under 1/d it goes as d to the power of -0.5 ± 0.02, and the entropy at the \
                    largest d is at least 0.99 of uniform attention's; and the constant 1/8 keeps it \
                    within 10 % of 1 at exactly one d.";

pub(super) fn claim(results: &Results) -> Claim {
    let widths = &results.plan.drawn_widths;
    let std = |scale, d| results.scores(d, 1.0, scale, |at| at.std);
    let mut figures = Vec::new();
    let mut right = Answer::Yes;
    let mut right_at = Vec::new();
    for &d in widths {
        let (root, constant) = (std(Scale::InvSqrtDim, d), std(CONSTANT, d));
        right = right.and(Answer::within(&root, 0.95, 1.05));
        if Answer::within(&constant, 0.9, 1.1) == Answer::Yes {
            right_at.push(d.to_string());
        }
        figures.push(Figure::kept(format!("deviation under 1/√d at d {d}"), root));
        figures.push(Figure::kept(
            format!("deviation under 1/8 at d {d}"),
            constant,
        ));
        let name = format!("deviation under 1/d at d {d}");
        figures.push(Figure::kept(name, std(Scale::InvDim, d)));
    }
    let falls = growth(results, Scale::InvDim);
    let largest = widths[widths.len() - 1];
    let entropy = results.scores(largest, 1.0, Scale::InvDim, |at| at.entropy);
    let parts = [
        Part::new("1/√d keeps the deviation at 1", right),
        Part::new(
            "under 1/d it falls as 1/√d",
            Answer::within(&falls, -0.52, -0.48),
        ),
        Part::new(
            "under 1/d attention goes uniform",
            Answer::above(&entropy, 0.99),
        ),
        Part::new(
            "1/8 is right at one d only",
            Answer::from_bool(right_at.len() == 1),
        ),
    ];
    let places: Vec<&str> = right_at.iter().map(String::as_str).collect();
    let (first, last) = (std(CONSTANT, widths[0]), std(CONSTANT, largest));
    let finding = format!(
        "Under 1/d the deviation goes as d to the power of {}, and the entropy at d {largest} is {} \
         of uniform attention's. Under 1/8 the deviation is 1 {}: it is {} at d {} and {} at d \
         {largest}.",
        cell(&falls),
        cell(&entropy),
        match places.is_empty() {
            true => "nowhere".to_string(),
            false => format!("at d {}", list(&places)),
        },
        cell(&first),
        widths[0],
        cell(&last),
    );
    let shown = [
        Figure::shown("exponent of d in the deviation under 1/d", falls),
        Figure::shown(format!("entropy / ln n under 1/d at d {largest}"), entropy),
        Figure::shown(format!("deviation under 1/8 at d {}", widths[0]), first),
        Figure::shown(format!("deviation under 1/8 at d {largest}"), last),
    ];
    figures.splice(0..0, shown);
    Claim::judged(2, SENTENCE, RULE, figures, &parts, finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn a_constant_that_is_right_everywhere_takes_that_part_away() {
        let claim = super::claim(&fixture::results());
        assert_eq!((claim.verdict, claim.condition), (Verdict::Holds, None));
        assert!(
            claim
                .finding
                .contains("the deviation is 1 at d 64: it is 0.250"),
            "{}",
            claim.finding
        );

        let mut changed = fixture::results();
        fixture::change(&mut changed, CONSTANT, |_, at| at.std = 1.0);
        let claim = super::claim(&changed);
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        assert!(
            claim
                .condition
                .unwrap()
                .ends_with("; not 1/8 is right at one d only")
        );
        assert!(
            claim
                .finding
                .contains("the deviation is 1 at d 4, 64 and 512"),
            "{}",
            claim.finding
        );
    }

    #[test]
    fn attention_that_stays_sharp_under_1_over_d_takes_that_part_away() {
        let mut changed = fixture::results();
        fixture::change(&mut changed, Scale::InvDim, |_, at| at.entropy = 0.9);
        let condition = super::claim(&changed).condition.unwrap();
        assert!(
            condition.ends_with("; not under 1/d attention goes uniform"),
            "{condition}"
        );
    }
}
