//! From numbers to a verdict: thresholds, answers, words.

use serde::{Serialize, Serializer};

use crate::summary::Spread;

/// What the measurements make of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// In everything that was measured.
    Holds,
    /// In some of it.
    HoldsUnderCondition,
    /// In nothing of it that is known.
    DoesNotHold,
    /// Nothing is known of it: what would decide was not reached.
    NotKnown,
}

impl Verdict {
    /// In words, as in the table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsUnderCondition => "holds under a condition",
            Self::DoesNotHold => "does not hold",
            Self::NotKnown => "not known",
        }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.words())
    }
}

/// What all seeds together say to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Every seed: the whole interval.
    Yes,
    /// No seed.
    No,
    /// Some seeds, but not all.
    Unclear,
    /// No seed is known to say yes, and not all are known to say no.
    Unknown,
}

impl Answer {
    pub fn above(spread: &Spread, bound: f64) -> Self {
        let not = |value: f64, more: bool| !more && value <= bound;
        Self::of(spread, |value, _| value > bound, not)
    }

    pub fn below(spread: &Spread, bound: f64) -> Self {
        let is = |value: f64, more: bool| !more && value < bound;
        Self::of(spread, is, |value, _| value >= bound)
    }

    pub fn within(spread: &Spread, low: f64, high: f64) -> Self {
        let is = |value: f64, more: bool| !more && (low..=high).contains(&value);
        // A bound that is below the top may stand for a number inside.
        let not = |value: f64, more: bool| value > high || !more && value < low;
        Self::of(spread, is, not)
    }

    /// `is` and `not` say what is certain of a number, or of a bound that it is above.
    fn of(
        spread: &Spread,
        is: impl Fn(f64, bool) -> bool,
        not: impl Fn(f64, bool) -> bool,
    ) -> Self {
        let known = || spread.values.iter().flatten();
        let all = spread.values.len();
        let count =
            |test: &dyn Fn(f64, bool) -> bool| known().filter(|m| test(m.value, m.more)).count();
        match (count(&is), count(&not)) {
            (yes, _) if all > 0 && yes == all => Self::Yes,
            (_, no) if all > 0 && no == all => Self::No,
            (0, _) => Self::Unknown,
            _ => Self::Unclear,
        }
    }

    /// Both questions together.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, Self::Yes) => Self::Yes,
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            _ => Self::Unclear,
        }
    }

    pub fn from_count(yes: usize, of: usize) -> Self {
        match yes {
            _ if of == 0 => Self::Unknown,
            yes if yes == of => Self::Yes,
            0 => Self::No,
            _ => Self::Unclear,
        }
    }

    pub fn from_bool(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// A part of a claim, where it was tested, and the answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    /// As in `at the start`; empty if the claim has one part.
    pub name: String,
    /// As in `at d_k 64`; empty if it was tested in one place.
    pub place: String,
    pub answer: Answer,
}

impl Part {
    pub fn new(name: impl Into<String>, answer: Answer) -> Self {
        Self::at(name, "", answer)
    }

    pub fn at(name: impl Into<String>, place: impl Into<String>, answer: Answer) -> Self {
        Self {
            name: name.into(),
            place: place.into(),
            answer,
        }
    }
}

/// The verdict of a claim's parts, and the condition in words where there is one.
pub(super) fn judge(parts: &[Part]) -> (Verdict, Option<String>) {
    let named = |answer| names(parts, answer);
    let (yes, no, unclear, unknown) = (
        named(Answer::Yes),
        named(Answer::No),
        named(Answer::Unclear),
        named(Answer::Unknown),
    );
    let verdict = match (yes.is_empty(), no.is_empty(), unclear.is_empty()) {
        (true, true, true) => return (Verdict::NotKnown, None),
        (false, true, true) if unknown.is_empty() => return (Verdict::Holds, None),
        (true, false, true) if unknown.is_empty() => return (Verdict::DoesNotHold, None),
        (true, false, _) => Verdict::DoesNotHold,
        _ => Verdict::HoldsUnderCondition,
    };
    let clause = |words: &str, names: &[String]| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| format!("{words}{}", list(&names)))
    };
    let clauses = [
        clause("", &yes),
        clause("not ", &no),
        clause("in some seeds only ", &unclear),
        clause("not known ", &unknown),
    ];
    let condition = clauses.into_iter().flatten().collect::<Vec<_>>().join("; ");
    (verdict, Some(condition))
}

/// The parts with an answer, those of one name together: with their places, unless the answer is
/// the same in all of them.
fn names(parts: &[Part], answer: Answer) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    for part in parts {
        if !names.contains(&part.name.as_str()) {
            names.push(&part.name);
        }
    }
    let text = |name: &str| {
        let of_name = || parts.iter().filter(|part| part.name == name);
        let places = of_name().filter(|part| part.answer == answer);
        let places: Vec<&str> = places.map(|part| part.place.as_str()).collect();
        let everywhere = places.len() == of_name().count() && !name.is_empty();
        match (places.is_empty(), everywhere) {
            (true, _) => None,
            (false, true) => Some(name.to_string()),
            (false, false) => Some(format!("{name} {}", list(&places)).trim().to_string()),
        }
    };
    names.into_iter().filter_map(text).collect()
}

/// `a, b and c`
pub(super) fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_string(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Measured;

    fn spread(values: &[(f64, bool)]) -> Spread {
        let measured = |&(value, more)| Some(Measured { value, more });
        Spread {
            values: values.iter().map(measured).collect(),
        }
    }

    #[test]
    fn an_answer_is_yes_or_no_only_where_all_seeds_agree() {
        let exact =
            |values: &[f64]| spread(&values.iter().map(|v| (*v, false)).collect::<Vec<_>>());
        assert_eq!(Answer::above(&exact(&[2.0, 3.0]), 1.5), Answer::Yes);
        assert_eq!(Answer::above(&exact(&[1.0, 1.2]), 1.5), Answer::No);
        assert_eq!(Answer::above(&exact(&[1.0, 3.0]), 1.5), Answer::Unclear);
        assert_eq!(Answer::below(&exact(&[1.0, 1.2]), 1.5), Answer::Yes);
        assert_eq!(Answer::below(&exact(&[2.0, 3.0]), 1.5), Answer::No);
        assert_eq!(Answer::within(&exact(&[0.9, 1.1]), 0.8, 1.2), Answer::Yes);
        assert_eq!(Answer::within(&exact(&[0.7, 1.3]), 0.8, 1.2), Answer::No);
        assert_eq!(
            Answer::within(&exact(&[0.7, 1.0]), 0.8, 1.2),
            Answer::Unclear
        );
        assert_eq!(Answer::above(&exact(&[]), 1.0), Answer::Unknown);
        assert_eq!(Answer::above(&exact(&[f64::NAN]), 1.0), Answer::Unknown);
    }

    #[test]
    fn a_bound_answers_only_what_is_certain_of_it() {
        let more_than_2 = spread(&[(2.0, true)]);
        assert_eq!(Answer::above(&more_than_2, 1.5), Answer::Yes);
        assert_eq!(Answer::above(&more_than_2, 3.0), Answer::Unknown);
        assert_eq!(Answer::below(&more_than_2, 1.5), Answer::No);
        assert_eq!(Answer::below(&more_than_2, 3.0), Answer::Unknown);
        assert_eq!(Answer::within(&more_than_2, 1.0, 3.0), Answer::Unknown);
        assert_eq!(Answer::within(&more_than_2, 0.0, 1.0), Answer::No);
        let one_known = Spread {
            values: vec![None, more_than_2.values[0]],
        };
        assert_eq!(Answer::above(&one_known, 1.5), Answer::Unclear);
        assert_eq!(Answer::below(&one_known, 1.5), Answer::Unknown);
        let none_known = Spread {
            values: vec![None, None],
        };
        assert_eq!(Answer::above(&none_known, 1.5), Answer::Unknown);
        assert_eq!(Answer::within(&none_known, 0.0, 1.0), Answer::Unknown);
    }

    #[test]
    fn both_answers_must_be_yes() {
        assert_eq!(Answer::Yes.and(Answer::Yes), Answer::Yes);
        assert_eq!(Answer::Yes.and(Answer::No), Answer::No);
        assert_eq!(Answer::Unclear.and(Answer::No), Answer::No);
        assert_eq!(Answer::Yes.and(Answer::Unclear), Answer::Unclear);
        assert_eq!(Answer::Yes.and(Answer::Unknown), Answer::Unknown);
        assert_eq!(Answer::Unknown.and(Answer::Unclear), Answer::Unknown);
        assert_eq!(Answer::Unknown.and(Answer::No), Answer::No);
        assert_eq!(Answer::from_count(3, 3), Answer::Yes);
        assert_eq!(Answer::from_count(1, 3), Answer::Unclear);
        assert_eq!(Answer::from_count(0, 3), Answer::No);
        assert_eq!(Answer::from_count(0, 0), Answer::Unknown);
    }

    fn judged(answers: &[Answer]) -> (Verdict, Option<String>) {
        let parts: Vec<Part> = answers
            .iter()
            .enumerate()
            .map(|(place, answer)| Part::at("", format!("at {place}"), *answer))
            .collect();
        judge(&parts)
    }

    fn condition(text: &str) -> Option<String> {
        Some(text.to_string())
    }

    #[test]
    fn a_verdict_turns_round_with_the_answers() {
        use Answer::{No, Unclear, Yes};
        assert_eq!(judged(&[Yes, Yes]), (Verdict::Holds, None));
        assert_eq!(judged(&[No, No]), (Verdict::DoesNotHold, None));
        assert_eq!(
            judged(&[No, Yes, Yes, Yes]),
            (
                Verdict::HoldsUnderCondition,
                condition("at 1, at 2 and at 3; not at 0")
            )
        );
        assert_eq!(
            judged(&[Yes, Unclear, No]),
            (
                Verdict::HoldsUnderCondition,
                condition("at 0; not at 2; in some seeds only at 1")
            )
        );
        assert_eq!(
            judged(&[Unclear]),
            (
                Verdict::HoldsUnderCondition,
                condition("in some seeds only at 0")
            )
        );
        assert_eq!(
            judged(&[No, Unclear]),
            (
                Verdict::DoesNotHold,
                condition("not at 0; in some seeds only at 1")
            )
        );
    }

    #[test]
    fn a_verdict_is_of_what_is_known_and_names_the_rest() {
        use Answer::{No, Unclear, Unknown, Yes};
        assert_eq!(judged(&[]), (Verdict::NotKnown, None));
        assert_eq!(judged(&[Unknown, Unknown]), (Verdict::NotKnown, None));
        assert_eq!(
            judged(&[Yes, Unknown]),
            (
                Verdict::HoldsUnderCondition,
                condition("at 0; not known at 1")
            )
        );
        assert_eq!(
            judged(&[Unclear, Unknown, Unknown]),
            (
                Verdict::HoldsUnderCondition,
                condition("in some seeds only at 0; not known at 1 and at 2")
            )
        );
        assert_eq!(
            judged(&[No, Unknown]),
            (Verdict::DoesNotHold, condition("not at 0; not known at 1"))
        );
    }

    #[test]
    fn a_part_is_named_without_its_places_where_all_of_them_agree() {
        let part = |name: &str, place: &str, answer| Part::at(name, place, answer);
        let (_, condition) = judge(&[
            part("at the start", "at d_k 64", Answer::No),
            part("at the start", "at d_k 256", Answer::No),
            part("later", "at d_k 64", Answer::No),
            part("later", "at d_k 128", Answer::Yes),
            part("later", "at d_k 256", Answer::Yes),
        ]);
        assert_eq!(
            condition.unwrap(),
            "later at d_k 128 and at d_k 256; not at the start and later at d_k 64"
        );
    }

    #[test]
    fn a_verdict_is_written_in_words() {
        let json = serde_json::to_value(Verdict::HoldsUnderCondition).unwrap();
        assert_eq!(json, "holds under a condition");
        let json = serde_json::to_value(Verdict::NotKnown).unwrap();
        assert_eq!(json, "not known");
    }
}
